//! How idle energy is found and handed out: the words of --attribution.idle and --attribution.idle-policy.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleMethod {
    Learned,
    Ratio,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdlePolicy {
    None,
    Usage,
    Requests,
    Equal,
}

crate::as_str!(IdlePolicy {
            None => "none",
            Usage => "usage",
            Requests => "requests",
            Equal => "equal",
});
