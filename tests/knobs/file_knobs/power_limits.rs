//! Power limits of packages, over trees of plain files.

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Knob, KnobValue};

use super::{ReadOnly, contents, open, text};
use crate::common::kept::Kept;
use crate::common::tree::Tree;

const PACKAGE: &str = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0";

fn limit(zone: &str) -> Knob {
    Knob::RaplLimit(zone.into())
}

/// A package with these limits, in microwatts, and no hint of its greatest one.
fn package(long_term: u64, short_term: u64) -> Tree {
    let mut tree = Tree::new();
    for line in [
        format!("f {PACKAGE}/name = package-0"),
        format!("f {PACKAGE}/enabled = 1"),
        format!("f {PACKAGE}/constraint_0_name = long_term"),
        format!("f {PACKAGE}/constraint_0_power_limit_uw = {long_term}"),
        format!("f {PACKAGE}/constraint_0_max_power_uw = 0"),
        format!("f {PACKAGE}/constraint_1_name = short_term"),
        format!("f {PACKAGE}/constraint_1_power_limit_uw = {short_term}"),
    ] {
        tree.apply(&line);
    }
    tree
}

#[test]
fn a_limit_that_the_firmware_keeps_is_not_effective_and_stays_so_fc_086() {
    let tree = Tree::case("FC-086");
    let kept = Kept::lines_of(&tree);
    let mut knobs = open(&tree);
    let knob = limit("intel-rapl:0");
    let original = knobs.list()[&knob].clone();
    assert_eq!((original.value, original.max, original.state), (Some(145_000_000), 145_000_000, KnobState::Ok));

    let found = knobs.write(&knob, &KnobValue::Set(90_000_000)).unwrap();
    assert_eq!((found.value, found.state), (Some(145_000_000), KnobState::NotEffective));
    for _ in 0..3 {
        assert_eq!(knobs.list()[&knob].state, KnobState::NotEffective);
    }
    assert_eq!(knobs.read(&knob).unwrap().state, KnobState::NotEffective);
    assert_eq!(kept.written(&tree.root().join(format!("{PACKAGE}/constraint_0_power_limit_uw"))), ["90000000"]);
    assert_eq!(kept.written(&tree.root().join(format!("{PACKAGE}/enabled"))), ["1"]);
    assert_eq!(knobs.write(&knob, &KnobValue::Restore(original.raw.clone())).unwrap(), original);
    drop(kept);

    // Somebody unlocked it: it shows another value.
    knobs.write(&knob, &KnobValue::Set(90_000_000)).unwrap();
    assert_eq!(knobs.list()[&knob].state, KnobState::Ok);
}

#[test]
fn a_limit_is_written_in_microwatts_fc_081() {
    let tree = package(205_000_000, 300_000_000);
    open(&tree).write(&limit("intel-rapl:0"), &KnobValue::Set(150_000_000)).unwrap();
    assert_eq!(text(&tree, &format!("{PACKAGE}/constraint_0_power_limit_uw")), "150000000");
}

#[test]
fn a_long_limit_stays_at_or_below_the_short_one() {
    let tree = package(145_000_000, 174_000_000);
    let found = open(&tree).write(&limit("intel-rapl:0"), &KnobValue::Set(200_000_000)).unwrap();
    assert_eq!((found.value, found.max), (Some(174_000_000), 174_000_000));
    assert_eq!(text(&tree, &format!("{PACKAGE}/constraint_1_power_limit_uw")), "174000000");
}

#[test]
fn a_constraint_is_found_by_its_name() {
    let mut tree = package(174_000_000, 145_000_000);
    tree.apply(&format!("f {PACKAGE}/constraint_0_name = short_term"));
    tree.apply(&format!("f {PACKAGE}/constraint_1_name = long_term"));
    let mut knobs = open(&tree);
    assert_eq!(knobs.read(&limit("intel-rapl:0")).unwrap().value, Some(145_000_000));
    knobs.write(&limit("intel-rapl:0"), &KnobValue::Set(90_000_000)).unwrap();
    assert_eq!(text(&tree, &format!("{PACKAGE}/constraint_1_power_limit_uw")), "90000000");
    assert_eq!(text(&tree, &format!("{PACKAGE}/constraint_0_power_limit_uw")), "174000000");
}

#[test]
fn a_limit_that_was_not_in_force_is_so_only_while_it_caps() {
    let mut tree = package(145_000_000, 174_000_000);
    tree.apply(&format!("f {PACKAGE}/enabled = 0"));
    let before = contents(tree.root());
    let mut knobs = open(&tree);
    let knob = limit("intel-rapl:0");
    let original = knobs.list()[&knob].clone();
    assert_eq!(knobs.write(&knob, &KnobValue::Set(90_000_000)).unwrap().state, KnobState::Ok);
    assert_eq!(text(&tree, &format!("{PACKAGE}/enabled")), "1");
    assert_eq!(knobs.write(&knob, &KnobValue::Restore(original.raw.clone())).unwrap(), original);
    assert_eq!(contents(tree.root()), before);
}

#[test]
fn a_limit_that_cannot_be_put_in_force_is_left_as_it_was() {
    let mut tree = package(145_000_000, 174_000_000);
    tree.apply(&format!("f {PACKAGE}/enabled = 0"));
    let before = contents(tree.root());
    let enabled = tree.root().join(PACKAGE).join("enabled");
    let _read_only = ReadOnly::new(&enabled);
    let error = open(&tree).write(&limit("intel-rapl:0"), &KnobValue::Set(90_000_000)).unwrap_err();
    assert_eq!(error.state, KnobState::NoPermission);
    assert!(error.detail.contains(&enabled.display().to_string()), "{}", error.detail);
    assert_eq!(contents(tree.root()), before);
}

#[test]
fn a_limit_of_zero_is_none_and_comes_back_as_zero() {
    let tree = package(0, 174_000_000);
    let mut knobs = open(&tree);
    let knob = limit("intel-rapl:0");
    assert_eq!(knobs.read(&knob).unwrap().value, None);
    assert_eq!(knobs.write(&knob, &KnobValue::Set(90_000_000)).unwrap().value, Some(90_000_000));
    let restored = knobs.write(&knob, &KnobValue::Restore("0".to_owned())).unwrap();
    assert_eq!((restored.value, restored.state), (None, KnobState::Ok));
    // Nothing says how much would be allowed.
    let tree = package(0, 0);
    let mut knobs = open(&tree);
    assert_eq!(knobs.list()[&knob].state, KnobState::Unsupported);
    assert_eq!(knobs.write(&knob, &KnobValue::Set(90_000_000)).unwrap_err().state, KnobState::Unsupported);
}

#[test]
fn an_attribute_that_answers_with_an_error_is_only_unknown_fc_015() {
    let tree = Tree::case("FC-015");
    let mut knobs = open(&tree);
    let listed = knobs.list();
    let limits: Vec<_> = listed.iter().map(|(knob, found)| (knob.device(), found.value, found.max)).collect();
    assert_eq!(limits, [("intel-rapl:0".to_owned(), Some(185_000_000), 185_000_000)]);
}

#[test]
fn a_package_shown_twice_is_one_knob_fc_002() {
    let mut tree = Tree::case("FC-002");
    let msr = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0";
    let mmio = "sys/devices/virtual/powercap/intel-rapl-mmio/intel-rapl-mmio:0";
    let constrain = |tree: &mut Tree, zone: &str| {
        tree.apply(&format!("f {zone}/constraint_0_name = long_term"));
        tree.apply(&format!("f {zone}/constraint_0_power_limit_uw = 45000000"));
    };
    constrain(&mut tree, mmio);
    assert_eq!(open(&tree).list().into_keys().collect::<Vec<_>>(), [limit("intel-rapl-mmio:0")]);
    constrain(&mut tree, msr);
    assert_eq!(open(&tree).list().into_keys().collect::<Vec<_>>(), [limit("intel-rapl:0")]);
}
