//! Policies that change while the agent runs, in a file and in the API.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};

use crate::common::one_of_three;
use crate::kubernetes::node::Node;
use crate::kubernetes::server::runtime;
use crate::world::{World, assert_shows, document, enforce, limit, policy};

#[test]
fn an_edit_acts_within_2_seconds_a_bad_one_changes_nothing_and_twenty_end_at_the_last() {
    one_of_three(|| {
        let mut world = World::new();
        world.interval = "1s";
        let _pods = world.busy(["train"]);
        world.policies(&policy("train", "Recommend", "watts: 400", ""));
        let agent = world.agent(&[]);
        agent.after_ticks(2);
        assert_eq!(world.nvml.writes().len(), 0);
        let mut longest = Duration::ZERO;
        for watts in [400, 350] {
            let began = Instant::now();
            world.policies(&limit("train", f64::from(watts)));
            world.wait_for_limit("GPU-train", watts * 1000);
            longest = longest.max(began.elapsed());
            agent.after_ticks(2);
        }
        println!("from an edit to its effect: {longest:?}");
        assert!(longest < Duration::from_secs(2), "{longest:?}");

        // One that cannot be read as a policy, and one that is no YAML: the last good version stays.
        let before = world.nvml.writes().len();
        for (bad, message) in [
            (policy("train", "Enforce", "watts: 350000", ""), "milliwatts"),
            ("- {name: train, mode: Enforce".to_owned(), "file"),
        ] {
            world.policies(&bad);
            world.wait("the refusal", || {
                let page = agent.scrape();
                page.select("energy_agent_policy_problems", &[]).iter().map(|sample| sample.number()).sum::<f64>() > 0.0
            });
            let page = agent.after_ticks(3);
            assert_shows(&page, "energy_agent_policy_budget_watts", &[("policy", "train")], 350.0);
            assert_eq!((world.nvml.writes().len(), world.limit_mw("GPU-train")), (before, Some(350_000)));
            assert!(!agent.logged(message).is_empty(), "{message}: {:#?}", agent.log());
        }

        let began = Instant::now();
        for edit in 0..20 {
            // The last is below what any before it leads to, so that it has to be written.
            world.policies(&limit("train", f64::from(if edit == 19 { 250 } else { 300 - edit })));
            thread::sleep(Duration::from_millis(95));
        }
        println!("20 edits took {:?}", began.elapsed());
        world.wait_for_limit("GPU-train", 250_000);
        agent.after_ticks(2);
        assert_eq!(world.limit_mw("GPU-train"), Some(250_000));
        let writes = world.nvml.writes().len() - before;
        // Two seconds of ticks, and the last.
        assert!(writes <= 4, "{writes} writes: {:#?}", &world.nvml.writes()[before..]);
        world.no_policies();
        world.wait_until_open("GPU-train");
    });
}

struct Map<'a> {
    api: Api<ConfigMap>,
    node: &'a Node,
}

impl Map<'_> {
    fn object(&self, policies: &str) -> ConfigMap {
        let metadata = ObjectMeta { name: Some(self.node.name.clone()), ..ObjectMeta::default() };
        let data = BTreeMap::from([("policies.yaml".to_owned(), document(policies))]);
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }

    fn create(&self, policies: &str) {
        runtime().block_on(self.api.create(&PostParams::default(), &self.object(policies))).unwrap();
    }

    fn set(&self, policies: &str) {
        let object = self.object(policies);
        runtime().block_on(self.api.replace(&self.node.name, &PostParams::default(), &object)).unwrap();
    }

    fn delete(&self) {
        runtime().block_on(self.api.delete(&self.node.name, &DeleteParams::default())).unwrap();
    }
}

#[test]
fn a_configmap_caps_and_its_deletion_restores_and_an_api_that_is_away_does_not() {
    one_of_three(|| {
        let mut world = World::new();
        let _pods = world.busy(["train", "other"]);
        let map = Map { api: Api::namespaced(world.node.cluster.client.clone(), "default"), node: &world.node };
        let flag = format!("--capping.configmap=default/{}", world.node.name);
        let agent = world.spawn(&["--capping=on", &flag]);
        agent.wait_until_ready();
        agent.after_ticks(4);
        assert_eq!(world.nvml.writes().len(), 0);
        map.create(&enforce("train"));
        world.wait_for_lock("GPU-train");
        assert!(world.is_open("GPU-other"));
        // An edit.
        map.set(&(enforce("train") + &enforce("other")));
        world.wait_for_lock("GPU-other");

        world.node.proxy.go_away();
        let resets = || world.nvml.writes().iter().filter(|write| write["call"] == crate::world::RESET).count();
        agent.after_ticks(16);
        assert!(world.lock("GPU-train").is_some() && world.lock("GPU-other").is_some() && resets() == 0);
        // A deletion that nobody could tell of.
        map.set(&enforce("train"));
        agent.after_ticks(4);
        assert!(world.lock("GPU-other").is_some());
        world.node.proxy.come_back();
        world.wait_until_open("GPU-other");
        assert!(world.lock("GPU-train").is_some());

        map.delete();
        world.wait_until_open("GPU-train");
        let page = agent.after_ticks(2);
        assert!(!page.has("energy_agent_policy_info", &[]));
    });
}
