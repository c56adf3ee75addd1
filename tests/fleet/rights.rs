//! The roles of deploy/controller, compared with what the replicas asked the API server for.

use std::collections::BTreeSet;

use crate::common::kubernetes::proxy::Asked;
use crate::common::kubernetes::rights::{Right, granted, right};

/// Nothing was asked for that the roles do not allow, and they allow nothing else.
pub fn compare(asked: &[Asked]) {
    let (asked, granted): (BTreeSet<Right>, _) = (asked.iter().map(right).collect(), granted("controller/rbac.yaml"));
    assert_eq!(asked.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "asked for, and not allowed");
    // Read only when somebody else has written it, which the watch may tell sooner.
    let rare: Right = ["power.energy-agent.io", "powerlevels", "get"].map(str::to_owned).into();
    let unused: Vec<&Right> = granted.difference(&asked).filter(|right| **right != rare).collect();
    assert_eq!(unused, Vec::<&Right>::new(), "allowed, and never asked for");
}
