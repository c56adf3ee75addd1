//! Quotas that bite: what a pod may use, and what its files say afterwards.

use std::time::Duration;

use crate::common::agent::wait_for;
use crate::common::busy_node::{Busy, CpuPod, WATTS_PER_CPU, World, wait_for_state, writes};
use crate::common::{alone, one_of_three};

/// What the files say where nobody has set a quota.
const OPEN: &str = "-1\n100000\n";

fn open(pod: &CpuPod) -> &'static str {
    if pod.quota.v1 { OPEN } else { "max 100000\n" }
}

#[test]
fn a_pod_over_its_budget_is_throttled_to_it_and_let_go_when_the_policy_is_deleted() {
    let _alone = alone();
    one_of_three(|| {
        let world = World::new();
        let Some(pod) = world.pod("batch-0") else { return };
        let _load = pod.quota.load(&["spin", "0"]);
        // What this machine gives to it without a quota.
        let free = pod.cpus_over(Duration::from_secs(1));
        world.policies(&world.policy(40.0));
        let agent = world.agent(&["--interval=1s"]);
        pod.wait_until_capped();
        // 40 W are 0.4 CPUs; from one whole CPU, two halvings at most.
        agent.after_ticks(4);
        let budget = 40.0 / WATTS_PER_CPU;
        let used = pod.cpus_over(Duration::from_secs(4));
        assert!(used <= budget * 1.02, "{used} CPUs of {budget}");
        assert!(used >= budget * 0.75, "{used} CPUs: more was taken than had to be");
        assert!(pod.quota.throttled() > 10, "the kernel throttles");
        // A tick of a busy machine may come without a power.
        wait_for("the budget to be kept", || {
            let page = agent.scrape();
            let power = page.select("energy_agent_policy_power_watts", &[("policy", "quiet")]);
            power.iter().any(|power| power.number() <= 41.0).then_some(())
        });
        let ok = writes(&agent.scrape(), pod.device(), "ok");
        assert!((1..=5).contains(&ok), "{ok} writes");
        let page = agent.after_ticks(1);
        let millicpus = |metric: &str| page.number_of(metric, &[("device", pod.device())]) * 1000.0;
        let found = millicpus("energy_agent_cap_found_cpus");
        assert!((found - f64::from(u32::try_from(pod.quota.millicpus().unwrap()).unwrap())).abs() < 1e-6, "{found}");
        // What is wanted lies on no step of the quota, which is a hundredth of a CPU.
        let wanted = millicpus("energy_agent_cap_limit_cpus");
        assert!((found - 1e-6..found + 10.0).contains(&wanted), "{wanted} and {found}");

        world.no_policies();
        pod.wait_until_quota_is(open(&pod));
        wait_for("the journal to be empty", || world.journal().is_empty().then_some(()));
        let used = pod.cpus_over(Duration::from_secs(1));
        assert!(used > 0.8 * free, "{used} CPUs after it was let go, {free} before");
    });
}

#[test]
fn a_quota_of_the_kubelet_comes_back_as_it_was_whichever_way_the_agent_ends() {
    let _alone = alone();
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    pod.quota.set(150_000, 100_000);
    let before = pod.quota.quota();
    assert_eq!(pod.quota.millicpus(), Some(1500));
    let _load = pod.spin();
    let capped = || wait_for("a lower quota", || pod.quota.millicpus().filter(|&now| now < 1500));

    world.policies(&world.policy(15.0));
    let mut agent = world.agent(&[]);
    capped();
    let (status, _) = agent.end("TERM");
    assert!(status.success());
    assert_eq!(pod.quota.quota(), before, "after SIGTERM");
    assert_eq!(world.journal(), "");

    let mut agent = world.agent(&[]);
    capped();
    agent.end("KILL");
    assert!(pod.quota.millicpus().is_some_and(|now| now < 1500), "nobody is there to give it back");
    assert!(world.restore(&["--gpu=off"]).contains("restored"));
    assert_eq!(pod.quota.quota(), before, "after SIGKILL and the command");

    let mut agent = world.agent(&[]);
    capped();
    agent.end("KILL");
    let killed_at = pod.quota.quota();
    // With the policy, the cap goes on from where it is; what it was stays what it was before the first cap.
    let mut agent = world.agent(&[]);
    let page = agent.after_ticks(2);
    assert!(pod.quota.millicpus().is_some_and(|now| now < 1500), "{}, and {killed_at} before", pod.quota.quota());
    assert!(world.journal().contains("\"original_raw\":\"150000 100000\""), "{}", world.journal());
    assert_eq!(writes(&page, pod.device(), "restored"), 0, "{}", page.text);
    agent.end("KILL");
    // Without the policy it is given back at the start.
    world.no_policies();
    let agent = world.agent(&[]);
    agent.after_ticks(1);
    assert_eq!(pod.quota.quota(), before, "after SIGKILL and a start without the policy");
    assert_eq!(world.journal(), "");
}

#[test]
fn a_policy_that_only_recommends_or_is_off_writes_nothing() {
    let _alone = alone();
    let recommend = |world: &World| world.policy(15.0).replace("Enforce", "Recommend");
    let Some(Busy { world, pod, load: _load, agent }) = Busy::under(recommend) else { return };
    wait_for_state(&agent, "quiet", "recommending");
    let page = agent.after_ticks(2);
    assert!(page.number_of("energy_agent_policy_ceiling_ratio", &[("policy", "quiet")]) < 0.9);
    assert_eq!(pod.quota.quota(), open(&pod));
    assert_eq!(writes(&page, pod.device(), "ok"), 0);
    assert_eq!(world.journal(), "");
    // Enforced, and back: the mode alone lets go.
    world.policies(&world.policy(15.0));
    pod.wait_until_capped();
    world.policies(&world.policy(15.0).replace("Enforce", "Off"));
    pod.wait_until_quota_is(open(&pod));
}

#[test]
fn a_quota_that_is_put_back_behind_the_agent_is_set_again() {
    let _alone = alone();
    let Some(Busy { world, pod, load: _load, agent }) = Busy::under(|world| world.policy(15.0)) else { return };
    wait_for_state(&agent, "quiet", "capping");
    agent.after_ticks(4);
    let capped = pod.wait_until_capped();
    // As systemd does on daemon-reload.
    pod.quota.set(-1, 100_000);
    wait_for("the quota to be set again", || pod.quota.millicpus().filter(|&now| now <= capped));
    let said = wait_for("a line about it", || Some(agent.logged("went back to")).filter(|lines| !lines.is_empty()));
    assert_eq!(said.len(), 1, "{said:#?}");
    world.no_policies();
    pod.wait_until_quota_is(open(&pod));
}

#[test]
fn a_pod_that_is_resized_while_it_is_capped_is_held_again_and_gets_its_new_limit_back_fc_121() {
    let _alone = alone();
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    pod.quota.set(100_000, 100_000);
    let _load = pod.spin();
    world.policies(&world.policy(15.0));
    let agent = world.agent(&[]);
    wait_for_state(&agent, "quiet", "capping");
    agent.after_ticks(4);
    pod.quota.set(200_000, 100_000);
    let resized = pod.quota.quota();
    let device = ("device", pod.device());
    // 15 W and what a tick is off by, long before ten minutes have passed.
    let held = (0..40).find(|_| {
        let page = agent.after_ticks(1);
        assert!(!page.has("energy_agent_cap_up", &[device, ("reason", "yielded")]), "{}", page.text);
        let power = page.select("energy_agent_policy_power_watts", &[("policy", "quiet")]);
        pod.quota.millicpus().is_some_and(|now| now <= 200) && power.iter().any(|power| power.number() <= 16.5)
    });
    assert!(held.is_some(), "{} after 40 ticks: {:#?}", pod.quota.quota(), agent.log());
    assert!(world.journal().contains("\"original_raw\":\"200000 100000\""), "{}", world.journal());
    let said = agent.assert_logged("the pod was resized", 1);
    assert!(said[0].contains("it is 2 CPUs, but"), "{said:#?}");
    assert_eq!(agent.logged("neither cores of its own nor a writable quota"), Vec::<String>::new());
    world.no_policies();
    pod.wait_until_quota_is(&resized);

    // To less than it is held at.
    world.policies(&world.policy(15.0));
    wait_for("a lower quota", || pod.quota.millicpus().filter(|&now| now <= 200));
    pod.quota.set(3_000, 100_000);
    let resized = pod.quota.quota();
    wait_for("the journal to forget it", || Some(()).filter(|()| world.journal().is_empty()));
    agent.after_ticks(3);
    world.no_policies();
    agent.after_ticks(3);
    assert_eq!(pod.quota.quota(), resized);
}

#[test]
fn a_pod_that_is_resized_while_no_agent_runs_keeps_its_new_limit_and_is_held_again_fc_121() {
    let _alone = alone();
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    pod.quota.set(100_000, 100_000);
    let _load = pod.spin();
    let capped = || wait_for("a lower quota", || pod.quota.millicpus().filter(|&now| now <= 200));
    world.policies(&world.policy(15.0));
    let mut agent = world.agent(&[]);
    capped();
    agent.end("KILL");
    pod.quota.set(200_000, 100_000);
    let resized = pod.quota.quota();
    let mut agent = world.agent(&[]);
    capped();
    assert!(world.journal().contains("\"original_raw\":\"200000 100000\""), "{}", world.journal());
    assert!(agent.end("TERM").0.success());
    assert_eq!(pod.quota.quota(), resized, "after SIGTERM");

    // Without the policy, at the next start and by the command.
    for quota_us in [150_000, 170_000] {
        world.policies(&world.policy(15.0));
        let mut agent = world.agent(&[]);
        capped();
        agent.end("KILL");
        pod.quota.set(quota_us, 100_000);
        let resized = pod.quota.quota();
        world.no_policies();
        if quota_us == 150_000 {
            world.agent(&[]).after_ticks(2);
        } else {
            assert!(world.restore(&["--gpu=off"]).contains("left: another program has set it, it is 1.7 CPUs"));
        }
        assert_eq!((pod.quota.quota(), world.journal().as_str()), (resized, ""));
    }
}

#[test]
fn a_pod_that_is_deleted_while_it_is_capped_leaves_nothing_behind() {
    let _alone = alone();
    let Some(Busy { world, pod, load, agent }) = Busy::under(|world| world.policy(15.0)) else { return };
    pod.wait_until_capped();
    assert!(world.journal().contains(pod.device()));
    world.node.cluster.delete(&pod.object);
    drop(load);
    let device = pod.device().to_owned();
    drop(pod);
    wait_for("the journal to forget it", || Some(()).filter(|()| !world.journal().contains(&device)));
    let page = agent.after_ticks(4);
    assert_eq!(page.count("energy_agent_cap_restore_pending"), 0);
    assert_eq!(page.count("energy_agent_cap_restore_failures_total"), 0);
    assert!(!page.has("energy_agent_cap_up", &[("device", &device)]));
    let said: Vec<String> = agent.log().into_iter().filter(|line| line.contains(&device)).collect();
    let troubles: Vec<&String> = said.iter().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    assert_eq!(troubles, Vec::<&String>::new());
}

#[test]
fn a_budget_below_what_the_floor_draws_is_unreachable_and_said_once() {
    let _alone = alone();
    let minimum = "  actuators: {cpu: {minCPUs: 0.1}}\n";
    let Some(Busy { world: _world, pod, load: _load, agent }) = Busy::under(|world| world.policy(2.0) + minimum) else {
        return;
    };
    wait_for_state(&agent, "quiet", "unreachable");
    let before = writes(&agent.scrape(), pod.device(), "ok");
    // At the first of its steps that is not below the least: a twentieth of the CPU that it used, 50 at most.
    let lowest = pod.quota.millicpus().unwrap();
    assert!((100..=150).contains(&lowest), "{lowest}");
    let page = agent.after_ticks(6);
    assert_eq!(writes(&page, pod.device(), "ok"), before, "no hunting");
}

#[test]
fn while_the_peak_is_not_known_nothing_is_lowered() {
    let _alone = alone();
    // Six minutes. It stays open, and says so.
    let policy = |world: &World| world.policy(15.0).replace("watts: 15", "percentOfPeak: 50, lookbackHours: 0.1");
    let Some(Busy { world: _world, pod, load: _load, agent }) = Busy::under(policy) else { return };
    wait_for_state(&agent, "quiet", "learning");
    let page = agent.after_ticks(4);
    assert_eq!(pod.quota.quota(), open(&pod));
    assert!(!page.has("energy_agent_policy_budget_watts", &[]), "no budget is known yet");
    assert!(page.has("energy_agent_policy_power_watts", &[]));
}
