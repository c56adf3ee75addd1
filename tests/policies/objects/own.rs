//! Clocks of one's own: the script in deploy/examples, for a policy with `algorithm: external`.

use std::path::Path;
use std::process::Output;

use super::kubectl::Person;
use super::{ROOT, apply, delete, has_api_server, install, object};
use crate::capping::world::World;

/// One run of the script: the price that it sees, the low clock, and for how many seconds clocks hold.
fn recommend(person: &Person, node: &str, price: &str, low: &str, seconds: &str, manager: &str) -> Output {
    let mut script = person.command("sh");
    script.arg(Path::new(ROOT).join("deploy/examples/own-clocks.sh"));
    script.args([node, "0.30", "1980", low, &format!("echo {price}"), "GPU-clocks"]);
    script.env("ONCE", "1").env("EXPIRES", seconds).env("MANAGER", manager).output().unwrap()
}

#[test]
fn a_script_lowers_clocks_while_power_is_dear_until_they_expire_and_another_owner_is_refused() {
    if !has_api_server() {
        return;
    }
    let mut world = World::new();
    install(&world.node.cluster);
    let [_pod] = world.busy(["clocks"]);
    let (name, person) = (world.node.name.clone(), Person::new(world.node.kubeconfig.clone()));
    // 700 W are under this budget: what lowers the clock is the recommender.
    let policy = "{mode: Enforce, selector: {matchLabels: {app: clocks}}, budget: {watts: 900, components: [gpu]}, \
                  control: {algorithm: external}, actuators: {gpu: {minClockMHz: 900}}}";
    let policy = object("PowerCappingPolicy", Some(&name), "clocks", policy);
    apply(&world.node.cluster, &policy);
    let mut agent = world.spawn(&["--capping=on", "--capping.resources=enforce"]);
    agent.wait_until_ready();

    let asked = |price: &str, low: &str, seconds: &str| {
        let output = recommend(&person, &name, price, low, seconds, "example.com/price");
        assert!(output.status.success(), "{output:?}");
    };
    asked("0.42", "1200", "600");
    assert_eq!(world.wait_for_lock("GPU-clocks").1, 1200);
    // Not below what the policy says.
    asked("0.42", "300", "600");
    world.wait("the floor", || world.lock("GPU-clocks").is_some_and(|(_, high)| high == 900));
    // A device has one owner.
    let output = recommend(&person, &name, "0.42", "1000", "600", "other");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("conflicts with \"example.com/price\""), "{told}");
    // Clocks that nobody renews are none.
    asked("0.42", "1000", "4");
    world.wait_until_open("GPU-clocks");
    delete(&world.node.cluster, &policy);
    agent.assert_well();
}
