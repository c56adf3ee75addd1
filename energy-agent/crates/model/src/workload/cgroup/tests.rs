use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::workload::Workload;

const UID: &str = "d1578427-1919-52ea-898e-2489f38c2504";
const OTHER_UID: &str = "99999999-1919-52ea-898e-2489f38c2504";
const ID: &str = "e163073df4c38b1df6bff3b06c1d62392a3fbf7592afe21e312a53ff0c532736";
const OTHER: &str = "d9f3d370aee7e68646dbc0d1345875b71a15f6efdfab5be9686e29ec7e47d721";

macro_rules! cases {
    ($($file:literal),+) => { [$(($file, include_str!(concat!("../../../../../../tests/cases/", $file)))),+] };
}

/// Kind, pod uid and container id as the case files write them; they list no id for containers outside pods.
fn columns(placement: &Placement) -> [&str; 3] {
    fn id(container: &Option<Container>) -> &str {
        container.as_ref().map_or("-", |container| &container.id)
    }
    match placement {
        Placement::Pod { uid, container } => ["pod", uid, id(container)],
        Placement::System { .. } => ["system", "-", "-"],
        Placement::Kernel => ["kernel", "-", "-"],
        Placement::Unresolved { container, .. } => ["unresolved", "-", id(container)],
    }
}

#[test]
fn every_field_case_is_placed_as_listed() {
    let files = cases![
        "FC-016-systemd-driver.tsv",
        "FC-017-cgroupfs-driver.tsv",
        "FC-018-crio-conmon.tsv",
        "FC-019-nested-node-v2.tsv",
        "FC-022-private-cgroupns.tsv",
        "FC-023-hybrid.tsv",
        "FC-025-look-alikes.tsv"
    ];
    let mut rows = 0;
    for (file, text) in files {
        for row in text.lines().filter(|line| !line.starts_with('#')) {
            let (proc_cgroup, expected) = row.split_once('\t').unwrap();
            let placement = from_proc_cgroup(&proc_cgroup.replace("\\n", "\n"));
            assert_eq!(columns(&placement).join("\t"), expected, "{file}: {row}");
            rows += 1;
        }
    }
    assert_eq!(rows, 5 + 4 + 4 + 3 + 5 + 3 + 8);
}

fn workload(path: &str) -> Workload {
    classify(path).into()
}

fn unit_workload(unit: &str) -> Workload {
    Workload::Unit { unit: Arc::from(unit) }
}

fn outside(unit: &str, id: &str, runtime: Runtime) -> Workload {
    Workload::Container { unit: Arc::from(unit), id: Arc::from(id), runtime }
}

#[test]
fn fc_109_a_payload_of_podman_is_a_container_in_its_service() {
    let text = include_str!("../../../../../../tests/cases/FC-109-quadlet.tsv");
    let rows: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let [path, kind, unit, id] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let wanted = match id {
            "-" => unit_workload(unit),
            id => outside(unit, id, Runtime::Podman),
        };
        assert_eq!((kind, Workload::from(from_proc_cgroup(path))), ("system", wanted), "{row}");
    }
    // In a service of a user's, and with a whole system in it.
    let path = format!("/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service/libpod-payload-{ID}");
    let shop = outside("user@1000.service/shop.service", ID, Runtime::Podman);
    assert_eq!(workload(&path), shop);
    assert_eq!(workload(&format!("{path}/system.slice/nginx.service")), shop);
    assert_eq!(workload(&format!("{path}/libpod-payload-{OTHER}")), shop);
}

#[test]
fn fc_109_a_container_of_any_other_runtime_is_one_too() {
    for prefix in ["runc-", "buildah-", "isulad_", "kata_", "my-own-runtime-"] {
        let path = format!("/system.slice/batch.service/{prefix}{ID}");
        assert_eq!(workload(&path), outside("batch.service", ID, Runtime::Unknown), "{path}");
        let scope = format!("{prefix}{ID}.scope");
        assert_eq!(workload(&format!("/system.slice/{scope}")), outside(&scope, ID, Runtime::Unknown), "{scope}");
        let pod = format!("/kubepods/pod{UID}");
        let container = Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime: Runtime::Unknown };
        assert_eq!(workload(&format!("{pod}/{prefix}{ID}")), container);
    }
    for no_container in [
        format!("x{ID}"),
        format!("-{ID}"),
        format!("a-{}", &ID[1..]),
        format!("\u{e9}{}", &ID[1..]),
        ID[1..].to_owned(),
    ] {
        let path = format!("/system.slice/a.service/{no_container}");
        assert_eq!(workload(&path), unit_workload("a.service"), "{path}");
    }
}

#[test]
fn a_hypervisor_beside_its_pod_names_the_sandbox() {
    let slice = format!("kubepods-pod{}.slice", UID.replace('-', "_"));
    for (path, unit) in [
        (format!("/kata_overhead/{ID}"), format!("/kata_overhead/{ID}")),
        (format!("/kubepods/burstable/kata_{ID}"), format!("/kubepods/burstable/kata_{ID}")),
        (format!("/kubepods.slice/kata_{ID}.scope/vcpu"), format!("kata_{ID}.scope")),
    ] {
        let reading = PathReading::of(&path);
        assert_eq!((reading.hypervisor_of(), reading.is_doubtful()), (Some(ID), true), "{path}");
        assert_eq!(workload(&path), outside(&unit, ID, Runtime::Unknown), "of no pod that is known");
    }
    // Here the path says the pod.
    let container = |runtime| Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime };
    for (path, runtime) in [
        (format!("/kubepods/pod{UID}/kata_{ID}"), Runtime::Unknown),
        (format!("/kata_overhead/kubepods/besteffort/pod{UID}/{ID}"), Runtime::Unknown),
        (format!("/kata_overhead/{slice}:cri-containerd:{ID}"), Runtime::Containerd),
    ] {
        let reading = PathReading::of(&path);
        assert_eq!((reading.hypervisor_of(), reading.pods[0].spot.level), (None, 0), "{path}");
        assert_eq!(workload(&path), container(runtime), "{path}");
    }
    // What others than the node can make does not count as a hypervisor.
    for path in [
        format!("/user.slice/user-1000.slice/user@1000.service/kata_{ID}"),
        format!("/system.slice/docker-{OTHER}.scope/kata_overhead/{ID}"),
        format!("/system.slice/own.service/kata_overhead/{ID}"),
        format!("/lxc.payload.c1/kata_{ID}"),
        format!("/../kata_overhead/{ID}"),
        format!("/docker/{ID}"),
        format!("/kata_overhead/a/{ID}"),
    ] {
        assert_eq!(PathReading::of(&path).hypervisor_of(), None, "{path}");
    }
}

#[test]
fn fc_110_a_machines_services_are_the_machines() {
    let text = include_str!("../../../../../../tests/cases/FC-110-nspawn.tsv");
    let rows: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut workloads = BTreeSet::new();
    for row in &rows {
        let [path, kind, unit] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let workload = Workload::from(from_proc_cgroup(path));
        let (named, below) = workload.unit().unwrap().split_once('/').unwrap_or((workload.unit().unwrap(), ""));
        assert_eq!((kind, named), ("system", unit), "{row}");
        assert_eq!(below, if path.contains("payload") { "nginx.service" } else { "" }, "{row}");
        workloads.insert(workload);
    }
    assert_eq!((rows.len(), workloads.len()), (3, 3), "three workloads");
}

#[test]
fn a_container_outside_pods_is_part_of_the_unit_it_runs_under() {
    let scope = format!("libpod-{ID}.scope");
    assert_eq!(workload(&format!("/machine.slice/{scope}/container")), outside(&scope, ID, Runtime::Podman));
    let scope = format!("docker-{ID}.scope");
    let nested_service = format!("/system.slice/{scope}/system.slice/containerd.service");
    assert_eq!(workload(&nested_service), outside(&scope, ID, Runtime::Docker));
    let path = format!("/docker/{ID}");
    assert_eq!(workload(&format!("{path}/init")), outside(&path, ID, Runtime::Docker));
    // What a container makes below itself is its own, whatever it is called.
    assert_eq!(workload(&format!("{path}/docker/{OTHER}")), outside(&path, ID, Runtime::Docker));
    let (scope, other) = (format!("docker-{ID}.scope"), format!("docker-{OTHER}.scope"));
    assert_eq!(workload(&format!("/system.slice/{scope}/{other}")), outside(&scope, ID, Runtime::Docker));
    let path = format!("/buildkit/{ID}");
    assert_eq!(workload(&path), outside(&path, ID, Runtime::Unknown));
    let conmon = format!("libpod-conmon-{ID}.scope");
    assert_eq!(workload(&format!("/machine.slice/{conmon}")), unit_workload(&conmon));
}

#[test]
fn a_pod_is_charged_for_containers_and_overhead_apart() {
    let pod = format!("/kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
    let overhead = Workload::PodOverhead { uid: Arc::from(UID) };
    assert_eq!(workload(&pod), overhead);
    assert_eq!(workload(&format!("{pod}/crio-conmon-{ID}.scope")), overhead);
    let container = Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime: Runtime::Crio };
    assert_eq!(workload(&format!("{pod}/crio-{ID}.scope/docker/{OTHER}")), container);
}

#[test]
fn a_static_pod_keeps_the_hash_of_its_path() {
    // FC-026
    let hash = "905322c7772380d4801f7a74d88494d7";
    let path = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{hash}.slice");
    assert_eq!(workload(&path), Workload::PodOverhead { uid: Arc::from(hash) });
}

#[test]
fn one_folder_of_three_parts_is_a_pod_and_its_container() {
    let uid = UID.replace('-', "_");
    let path = format!("/system.slice/containerd.service/kubepods-besteffort-pod{uid}.slice:cri-containerd:{ID}");
    let container = Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime: Runtime::Containerd };
    assert_eq!(workload(&path), container);
}

#[test]
fn a_sibling_pod_of_the_cgroupfs_driver_is_seen_from_a_namespace() {
    // FC-022 has the systemd driver only.
    let container = Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime: Runtime::Unknown };
    assert_eq!(workload(&format!("/../../../pod{UID}/{ID}")), container);
    assert_eq!(workload(&format!("/../../../besteffort/pod{UID}/{ID}")), container);
    assert_eq!(workload(&format!("/pod{UID}")), unit_workload(&format!("/pod{UID}")));
}

#[test]
fn a_container_cannot_pose_as_another_pod_by_a_folder_name() {
    let container = Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime: Runtime::Unknown };
    let path = format!("/kubepods/pod{UID}/{ID}/pod99999999-1919-52ea-898e-2489f38c2504/{OTHER}");
    assert_eq!(workload(&path), container);
}

#[test]
fn a_container_cannot_pose_as_another_pod_by_folders_as_the_kubelet_makes_them() {
    let container = Workload::PodContainer { uid: Arc::from(UID), id: Arc::from(ID), runtime: Runtime::Unknown };
    let slice = format!("kubepods-pod{}.slice", OTHER_UID.replace('-', "_"));
    for below in [
        format!("kubepods/burstable/pod{OTHER_UID}/{OTHER}"),
        format!("kubepods.slice/{slice}/cri-containerd-{OTHER}.scope"),
        format!("{slice}:cri-containerd:{OTHER}"),
    ] {
        let path = format!("/kubepods/pod{UID}/{ID}/{below}");
        assert_eq!(workload(&path), container, "{path}");
        assert!(PathReading::of(&path).is_doubtful(), "a node in a container looks so, too");
        assert_eq!(Workload::from(from_proc_cgroup(&format!("0::{path}\n"))), container);
    }
}

#[test]
fn a_spot_is_deeper_by_every_folder_above_that_is_no_slice() {
    let slice = format!("kubepods-besteffort-pod{}.slice", UID.replace('-', "_"));
    for (path, level, holder) in [
        (format!("/kubepods/burstable/pod{UID}/{ID}"), 0, ""),
        (format!("/kubepods/pod{UID}/{ID}"), 0, ""),
        (format!("/kubepods.slice/kubepods-besteffort.slice/{slice}/crio-{ID}.scope"), 0, ""),
        (format!("/system.slice/containerd.service/{slice}:cri-containerd:{ID}"), 0, ""),
        (format!("/system.slice/k.service/kubepods/pod{UID}"), 1, "/system.slice/k.service"),
        (format!("/a/b.slice/c/kubepods/besteffort/pod{UID}"), 2, "/a/b.slice/c"),
        (
            format!("/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-{slice}"),
            1,
            &*format!("/system.slice/docker-{ID}.scope"),
        ),
    ] {
        let [pod] = &PathReading::of(&path).pods[..] else { panic!("{path}") };
        assert_eq!((pod.spot.level, pod.spot.holder.as_str()), (level, holder), "{path}");
    }
    let reading = PathReading::of(&format!("/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER_UID}/{OTHER}"));
    let spots: Vec<_> = reading.pods.iter().map(|pod| (pod.uid.as_str(), pod.spot.level)).collect();
    assert_eq!(spots, [(UID, 0), (OTHER_UID, 3)], "kubepods, the pod and its container are above");
    assert_eq!(reading.pods[1].container.as_ref().map(|container| container.id.as_str()), Some(OTHER));
}

#[test]
fn a_process_that_is_gone_is_unresolved() {
    // FC-042: an empty file; a removed cgroup is marked by the kernel.
    assert_eq!(from_proc_cgroup(""), Placement::Unresolved { unit: "unknown".to_owned(), container: None });
    let deleted = Placement::System { unit: "sshd.service".to_owned(), container: None };
    assert_eq!(from_proc_cgroup("0::/system.slice/sshd.service (deleted)\n"), deleted);
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>(), path in "[/.:podkube\\-_0-9a-f\u{e9}\n]{0,200}") {
        for text in [text, path] {
            let _ = classify(&text);
            let _ = from_proc_cgroup(&text);
            let _ = from_proc_cgroup(&format!("0::{text}\n1:cpu:/{text}"));
        }
    }

    #[test]
    fn parents_and_children_do_not_change_a_pod_container(
        parents in proptest::collection::vec("[a-z@.:]{1,12}", 0..4),
        children in proptest::collection::vec("[a-z@.]{1,12}", 0..4),
        uid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        id in "[0-9a-f]{64}",
        systemd in any::<bool>(),
    ) {
        let pod = if systemd {
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/crio-{id}.scope", uid.replace('-', "_"))
        } else {
            format!("kubepods/burstable/pod{uid}/{id}")
        };
        let path = format!("/{}/{pod}/{}", parents.join("/"), children.join("/"));
        let runtime = if systemd { Runtime::Crio } else { Runtime::Unknown };
        prop_assert_eq!(classify(&path), Placement::Pod { uid, container: Some(Container { id, runtime }) });
    }
}
