//! The words of an enum in labels, log fields and messages. They are written out once, beside their variants: a renamed
//! variant must not rename a label, which a derive from its name would do.

/// Gives an enum `as_str`: `as_str!(State { Running => "running", Terminated => "terminated" });`
#[macro_export]
macro_rules! as_str {
    ($type:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $type {
            /// The word in labels and in the log.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }
    };
}
