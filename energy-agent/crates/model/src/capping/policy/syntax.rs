//! How names and labels are written, as Kubernetes has them.

/// What a text of a policy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// RFC 1123 subdomain, the name of most Kubernetes objects.
    Name,
    /// RFC 1123 label.
    Namespace,
    /// `name` or `prefix/name`.
    LabelKey,
    LabelValue,
}

impl Syntax {
    /// The same as [`Syntax::holds`], but for lengths that [`Syntax::max_chars`] bounds.
    ///
    /// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>
    #[must_use]
    pub const fn pattern(self) -> &'static str {
        match self {
            Self::Name => r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            Self::Namespace => r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            Self::LabelKey => {
                r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
            }
            Self::LabelValue => r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        }
    }

    #[must_use]
    pub(crate) const fn max_chars(self) -> usize {
        match self {
            Self::Name => 253,
            Self::Namespace | Self::LabelValue => 63,
            Self::LabelKey => 317,
        }
    }

    /// For `explain` and for messages.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Name => "lower case letters, digits, '-' and '.', at most 253, with a letter or digit at both ends",
            Self::Namespace => "lower case letters, digits and '-', at most 63, with a letter or digit at both ends",
            Self::LabelKey => {
                "a label's key: letters, digits, '-', '_' and '.', at most 63, after an optional DNS name and '/'"
            }
            Self::LabelValue => {
                "a label's value: letters, digits, '-', '_' and '.', at most 63, with a letter or digit at both ends"
            }
        }
    }

    #[must_use]
    pub fn holds(self, text: &str) -> bool {
        match self {
            Self::Name => subdomain(text),
            Self::Namespace => label(text) && text.len() <= 63,
            Self::LabelKey => match text.split_once('/') {
                Some((prefix, name)) => subdomain(prefix) && !name.is_empty() && word(name),
                None => !text.is_empty() && word(text),
            },
            Self::LabelValue => word(text),
        }
    }
}

fn subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(label)
}

fn label(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A label's value, or the name part of its key; empty is one.
fn word(text: &str) -> bool {
    let edge = |end: Option<char>| end.is_none_or(|end| end.is_ascii_alphanumeric());
    text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_written_as_kubernetes_has_them() {
        let long = |letters: usize| "a".repeat(letters);
        for (syntax, good, bad) in [
            (
                Syntax::Name,
                vec!["a".to_owned(), "night-cap".to_owned(), "a.b-1.c".to_owned(), long(253)],
                vec![
                    String::new(),
                    "A".to_owned(),
                    "-a".to_owned(),
                    "a-".to_owned(),
                    "a..b".to_owned(),
                    "a_b".to_owned(),
                    long(254),
                ],
            ),
            (
                Syntax::Namespace,
                vec!["0".to_owned(), "kube-system".to_owned(), long(63)],
                vec![String::new(), "a.b".to_owned(), "é".to_owned(), long(64)],
            ),
            (
                Syntax::LabelKey,
                vec![
                    "app".to_owned(),
                    "App.K8s_io".to_owned(),
                    "example.com/app".to_owned(),
                    format!("a/{}", long(63)),
                ],
                vec![
                    String::new(),
                    "/app".to_owned(),
                    "a/".to_owned(),
                    "a/b/c".to_owned(),
                    "A.com/b".to_owned(),
                    "_a".to_owned(),
                    long(64),
                    format!("{}/a", long(254)),
                ],
            ),
            (
                Syntax::LabelValue,
                vec![String::new(), "1".to_owned(), "a_B.c-d".to_owned(), long(63)],
                vec![".a".to_owned(), "a ".to_owned(), "a/b".to_owned(), long(64)],
            ),
        ] {
            for text in good {
                assert!(syntax.holds(&text), "{syntax:?} {text}");
            }
            for text in bad {
                assert!(!syntax.holds(&text), "{syntax:?} {text}");
            }
        }
    }
}
