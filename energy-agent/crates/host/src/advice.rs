//! The remedy that an error carries, apart from what is wrong.

use energy_model::advice::Advice;

/// The whole chain of an error. The remedy is that of the [`Advice`] in it, if there is one.
#[must_use]
pub fn advice_of(error: &anyhow::Error) -> Advice {
    let whole = format!("{error:#}");
    match error.downcast_ref::<Advice>() {
        Some(advice) => Advice::new(whole.replacen(&advice.to_string(), &advice.what, 1), &advice.remedy),
        None => whole.into(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn the_remedy_is_found_at_the_top_and_at_the_root_of_an_error() {
        let top = advice_of(&anyhow!("EPERM; errno 1").context(Advice::new("not permitted", "run as root")));
        assert_eq!((&*top.what, &*top.remedy), ("not permitted: EPERM; errno 1", "run as root"));
        let root = Err::<(), _>(Advice::new("no cgroup v2; found cpu", "mount it"));
        let root = advice_of(&root.context("looking for cgroups").unwrap_err());
        assert_eq!((&*root.what, &*root.remedy), ("looking for cgroups: no cgroup v2; found cpu", "mount it"));
        assert_eq!(advice_of(&anyhow!("torn; odd")), Advice::from("torn; odd"));
    }
}
