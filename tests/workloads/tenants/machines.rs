//! Machines, users' managers, podman's units, Slurm's steps and virtual machines: each has a row of its own, whatever its
//! services are called, and the sum stays what it was (FC-109, FC-110).

use std::fs;
use std::path::PathBuf;
use std::process;

use super::assert_its_own;
use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::{Load, Pod, cpu_ns, ids, remove_all, v2_root};
use crate::common::kubernetes::node::{CONTAINER_SECONDS, POD_SECONDS};
use crate::common::page::Page;
use crate::common::{alone, one_of_three};

const SYSTEM_SECONDS: &str = "energy_agent_system_cpu_seconds_total";

/// Cgroups below one of the top, removed on drop.
struct Top(PathBuf);

impl Top {
    fn new(name: &str) -> Self {
        let top = Self(v2_root().join(name));
        fs::create_dir_all(&top.0).unwrap();
        top
    }

    fn make(&self, path: &str) -> PathBuf {
        let folder = self.0.join(path);
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        remove_all(&self.0);
    }
}

#[test]
fn a_service_of_one_name_in_many_places_is_as_many_workloads() {
    one_of_three(|| {
        let _alone = alone();
        let name = format!("energy-agent-test-{}", process::id());
        // A slice has no part in names, so that these are named as below the root.
        let slice = Top::new(&format!("{name}.slice"));
        let lxc = Top::new(&format!("lxc.payload.{name}"));
        let service = format!("{name}.service");
        let places: Vec<(PathBuf, String)> = [
            (slice.make(&service), service.clone()),
            (slice.make(&format!("user@1000.service/app.slice/{service}")), format!("user@1000.service/{service}")),
            (
                slice.make(&format!("systemd-nspawn@web.service/payload/system.slice/{service}")),
                format!("systemd-nspawn@web.service/{service}"),
            ),
            (
                slice
                    .make(&format!("systemd-nspawn@web.service/payload/user.slice/user@0.service/app.slice/{service}")),
                format!("systemd-nspawn@web.service/user@0.service/{service}"),
            ),
            (slice.make("systemd-nspawn@web.service/supervisor"), "systemd-nspawn@web.service".to_owned()),
            (lxc.make(&format!("system.slice/{service}")), format!("/lxc.payload.{name}/{service}")),
            (slice.make("slurmstepd.scope/job_1/step_0/user/task_0"), "slurmstepd.scope/job_1/step_0".to_owned()),
            (slice.make("slurmstepd.scope/job_2/step_0/user/task_0"), "slurmstepd.scope/job_2/step_0".to_owned()),
            (
                slice.make(r"machine-qemu\x2d1\x2ddb.scope/libvirt/emulator"),
                r"machine-qemu\x2d1\x2ddb.scope".to_owned(),
            ),
        ]
        .into();
        let agent = Agent::start(&["--interval=250ms", "--meter.cpu=estimate", "--pods.source=none"]);
        let used = |page: &Page, unit: &str| page.nanoseconds(SYSTEM_SECONDS, &[("unit", unit)]);
        // Different amounts, so that no two can be mistaken for each other, and large ones beside a switch that the kernel hides.
        for ((folder, _), at) in places.iter().zip(1..) {
            Load::start(folder, &["burn", &(at * 180_000).to_string()]).wait();
        }
        let page = agent.after_ticks(2);
        page.assert_conserved();
        for (folder, unit) in &places {
            assert_its_own(used(&page, unit), cpu_ns(folder));
        }
    });
}

#[test]
fn a_payload_of_podman_is_a_container_whose_id_nobody_takes() {
    one_of_three(|| {
        let _alone = alone();
        let name = format!("energy-agent-test-{}", process::id());
        let slice = Top::new(&format!("{name}.slice"));
        let [id, system_id, other_id] = [(); 3].map(|()| ids().1);
        // A user who knows the id is there first.
        let look_alike = slice.make(&format!("user@1000.service/libpod-payload-{id}"));
        let agent = Agent::start(&["--interval=250ms", "--meter.cpu=estimate", "--pods.source=none"]);
        agent.after_ticks(1);
        let shop = slice.make(&format!("{name}-shop.service/libpod-payload-{id}"));
        let wiki = slice.make(&format!("{name}-wiki.service/libpod-payload-{system_id}/init.scope"));
        let other = slice.make(&format!("{name}-other.service/some-runtime-{other_id}"));
        let own = slice.make(&format!("{name}-shop.service/runtime"));
        for (folder, work_us) in [(&shop, "300000"), (&wiki, "450000"), (&other, "600000"), (&look_alike, "750000")] {
            Load::start(folder, &["burn", work_us]).wait();
        }
        Load::start(&own, &["burn", "150000"]).wait();
        let page = agent.after_ticks(2);
        page.assert_conserved();
        let container = |id: &str, runtime: &str| {
            page.nanoseconds(CONTAINER_SECONDS, &[("container_id", id), ("runtime", runtime), ("pod_id", "")])
        };
        assert_its_own(container(&id, "podman"), cpu_ns(&shop));
        assert_its_own(container(&system_id, "podman"), cpu_ns(&wiki));
        assert_its_own(container(&other_id, "unknown"), cpu_ns(&other));
        let unit = |unit: &str| page.nanoseconds(SYSTEM_SECONDS, &[("unit", unit)]);
        // A unit has the sum of what runs in it.
        assert_its_own(unit(&format!("{name}-shop.service")), cpu_ns(&shop) + cpu_ns(&own));
        assert_its_own(unit("user@1000.service"), cpu_ns(&look_alike));
    });
}

#[test]
fn a_hypervisor_beside_a_pod_is_the_pods_and_no_tenant_has_one() {
    one_of_three(|| {
        let _alone = alone();
        let pod = Pod::new();
        let sandbox = &pod.container_id;
        let user = Top::new(&format!("energy-agent-test-{}.slice", process::id()));
        let look_alike = user.make(&format!("user@1000.service/kata_overhead/{sandbox}"));
        let agent = Agent::start(&["--interval=250ms", "--meter.cpu=estimate", "--pods.source=none"]);
        agent.after_ticks(1);
        let overhead = Top::new(&format!("kata_overhead/{sandbox}"));
        Load::start(&overhead.0, &["burn", "300000"]).wait();
        pod.load(&["burn", "150000"]).wait();
        Load::start(&look_alike, &["burn", "750000"]).wait();
        let truth = |page: &Page| {
            (page.nanoseconds(POD_SECONDS, &[("pod_id", &pod.uid)]), pod.cgroup.cpu_ns() + cpu_ns(&overhead.0))
        };
        let page = wait_for("the pod's work", || Some(agent.after_ticks(2)).filter(|page| truth(page).0 > 0));
        page.assert_conserved();
        let (shown, is_true) = truth(&page);
        assert_its_own(shown, is_true);
        let of_user = page.nanoseconds(SYSTEM_SECONDS, &[("unit", "user@1000.service")]);
        assert_its_own(of_user, cpu_ns(&look_alike));
        drop(overhead);
        // Of Kata itself nothing is left there, unless this machine runs it.
        let _ = fs::remove_dir(v2_root().join("kata_overhead"));
    });
}
