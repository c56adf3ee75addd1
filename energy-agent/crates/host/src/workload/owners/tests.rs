use energy_model::workload::units::{HeldWorkloads, OTHER_UNIT, Units};

use super::*;

const POD: &str = "/kubepods/podd1578427-1919-52ea-898e-2489f38c2504";
const ID: &str = "e163073df4c38b1df6bff3b06c1d62392a3fbf7592afe21e312a53ff0c532736";

/// Owners whose hierarchy cannot be walked, so that events alone count.
fn owners(start: Instant) -> Owners {
    Owners::empty(Path::new("/nonexistent/cgroup"), start)
}

fn created(id: CgroupId, path: &str) -> CgroupEvent {
    CgroupEvent::Created { id, path: path.to_owned() }
}

fn removed(id: CgroupId) -> CgroupEvent {
    CgroupEvent::Removed { id }
}

#[test]
fn a_cgroup_that_came_and_went_within_a_tick_has_an_owner() {
    let start = Instant::now();
    let mut owners = owners(start);
    owners.apply(start, &[created(7, "/system.slice/a.service"), removed(7)], true);
    assert_eq!(owners.take_removed(), [7]);
    let owner = owners.owner(7);
    assert_eq!(owner.unit(), Some("a.service"));
    assert!(!owners.is_alive(&owner));
    assert_eq!(owners.take_removed(), [7], "late work brings its entry back");
    owners.apply(start + Duration::from_secs(179), &[], true);
    assert_eq!(owners.owner(7), owner);
    owners.apply(start + Duration::from_secs(180), &[], true);
    assert_eq!(owners.owner(7).unit(), Some("unknown"));
}

#[test]
fn fc_131_a_cgroup_whose_path_is_too_long_is_the_nearest_pods() {
    let start = Instant::now();
    let mut owners = owners(start);
    let container = format!("{POD}/{ID}");
    let deep = CgroupEvent::CreatedDeep { id: 9, above: format!("{container}/docker/a/b") };
    owners.apply(start, &[created(1, POD), created(2, &container), deep, removed(9)], true);
    assert!(Arc::ptr_eq(&owners.owner(9), &owners.owner(2)));
    assert_eq!((owners.walks(), owners.unknown_cgroups()), (0, 0), "there is nothing to be found any more");
    // One that is there is looked for once. It is never taken for the pod's own.
    let deep = CgroupEvent::CreatedDeep { id: 10, above: POD.to_owned() };
    owners.apply(start + Duration::from_secs(1), &[deep], true);
    owners.apply(start + Duration::from_secs(2), &[], true);
    assert_eq!(owners.walks(), 1);
    assert!(Arc::ptr_eq(&owners.owner(10), &owners.owner(1)));
    owners.apply(start + Duration::from_secs(3), &[removed(10)], true);
    assert_eq!(owners.pod_cgroup(&POD["/kubepods/pod".len()..]).map(|path| &**path), Some(&POD[1..]));
}

#[test]
fn a_walk_finds_the_whole_path_of_a_cgroup_that_is_there() {
    let start = Instant::now();
    let root = tempfile::tempdir().unwrap();
    let mut owners = Owners::open(root.path(), start).unwrap();
    let inner = POD.replace("d1578427", "99999999");
    let folder = root.path().join(format!("{}{inner}/{ID}", "slice.slice/".repeat(50)));
    fs::create_dir_all(&folder).unwrap();
    let id = fs::metadata(&folder).unwrap().ino();
    let above = "/slice.slice".repeat(40);
    let deep = CgroupEvent::CreatedDeep { id, above };
    owners.apply(start + Duration::from_secs(1), &[deep], true);
    let container = owners.owner(id);
    assert_eq!(container.pod_uid().map(|uid| &**uid), Some("99999999-1919-52ea-898e-2489f38c2504"));
    assert!(owners.is_alive(&container));
    assert_eq!(owners.roster.known().filter(|it| it.unit() == Some("slice.slice")).count(), 1, "its slices' own");
    fs::remove_dir(&folder).unwrap();
    owners.apply(start + Duration::from_secs(2), &[removed(id)], true);
    assert!(!owners.is_alive(&container));
}

/// In whatever order the cgroups are made.
#[test]
fn a_hypervisor_beside_its_pod_is_the_sandboxs_as_soon_as_that_is_known() {
    let (pod, sandbox) = (created(1, POD), created(2, &format!("{POD}/kata_{ID}")));
    let overhead = created(3, &format!("/kata_overhead/{ID}"));
    for events in [[pod.clone(), sandbox.clone(), overhead.clone()], [overhead, pod, sandbox]] {
        let start = Instant::now();
        let mut owners = owners(start);
        for event in events {
            owners.apply(start, &[event], true);
        }
        assert!(Arc::ptr_eq(&owners.owner(2), &owners.owner(3)));
        assert_eq!(owners.owner(3).pod_uid().map(|uid| &**uid), Some(&POD["/kubepods/pod".len()..]));
        assert_eq!(owners.pod_cgroup(&POD["/kubepods/pod".len()..]).map(|path| &**path), Some(&POD[1..]));
        owners.apply(start + Duration::from_secs(1), &[removed(2), removed(1), removed(3)], true);
        owners.apply(start + KEEP_REMOVED + Duration::from_secs(1), &[], true);
        assert!(owners.cgroups.is_empty() && owners.doubtful.is_empty());
        assert_eq!(owners.roster.known().count(), 3, "the kernel and the units unknown and other");
    }
}

#[test]
fn a_hypervisor_whose_sandbox_two_pods_have_is_neithers() {
    let start = Instant::now();
    let mut owners = owners(start);
    let other = POD.replace("d1578427", "99999999");
    let events = [created(1, &format!("{POD}/{ID}")), created(2, &format!("{other}/{ID}"))];
    owners.apply(start, &events, true);
    owners.apply(start, &[created(3, &format!("/kata_overhead/{ID}"))], true);
    assert_eq!(owners.owner(3).unit(), Some(&*format!("/kata_overhead/{ID}")));
}

#[test]
fn a_pods_own_cgroup_is_the_outermost_and_goes_with_it() {
    let start = Instant::now();
    let mut owners = owners(start);
    owners.apply(start, &[created(1, POD), created(2, &format!("{POD}/conmon")), created(3, "/a.slice")], true);
    let uid = "d1578427-1919-52ea-898e-2489f38c2504";
    assert_eq!(owners.pod_cgroup(uid).map(|path| &**path), Some(&POD[1..]));
    owners.apply(start, &[removed(2)], true);
    assert!(owners.pod_cgroup(uid).is_some());
    owners.apply(start, &[removed(1)], true);
    assert_eq!(owners.pod_cgroup(uid), None);
}

#[test]
fn a_container_lives_while_any_of_its_cgroups_does() {
    let start = Instant::now();
    let mut owners = owners(start);
    let container = format!("{POD}/{ID}");
    owners.apply(start, &[created(1, POD), created(2, &container), created(3, &format!("{container}/init"))], true);
    let (pod, container) = (owners.owner(1), owners.owner(2));
    assert!(Arc::ptr_eq(&container, &owners.owner(3)));
    owners.apply(start, &[removed(2), removed(2)], true);
    assert!(owners.is_alive(&container));
    owners.apply(start, &[removed(3)], true);
    assert!(!owners.is_alive(&container));
    assert!(owners.is_alive(&pod));
    assert!(!owners.alive().contains(&container));
}

#[test]
fn a_restarted_service_is_the_same_workload() {
    let start = Instant::now();
    let mut owners = owners(start);
    owners.apply(start, &[created(1, "/a.service"), removed(1)], true);
    let before = owners.owner(1);
    owners.apply(start + Duration::from_secs(1), &[created(2, "/a.service")], true);
    assert!(Arc::ptr_eq(&before, &owners.owner(2)));
    assert!(owners.is_alive(&before));
    owners.apply(start + Duration::from_secs(600), &[], true);
    assert!(Arc::ptr_eq(&before, &owners.owner(2)));
    assert!(owners.is_alive(&before));
}

#[test]
fn kernel_threads_and_unknown_work_have_owners_that_never_end() {
    let start = Instant::now();
    let mut owners = owners(start);
    owners.apply(start, &[], true);
    assert!(owners.alive().is_empty(), "nothing was charged yet");
    assert_eq!(*owners.owner(KERNEL_THREADS), Workload::Kernel);
    assert!(owners.is_alive(&Workload::Kernel));
    let unknown = owners.owner(99);
    assert_eq!(unknown.unit(), Some("unknown"));
    assert!(owners.is_alive(&unknown));
}

#[test]
fn unknown_ids_are_counted_once_and_cause_one_walk_a_tick() {
    let start = Instant::now();
    let mut owners = owners(start);
    let second = start + Duration::from_secs(1);
    owners.apply(second, &[], true);
    for id in [10, 11, 12, 10] {
        owners.owner(id);
    }
    assert_eq!((owners.unknown_cgroups(), owners.walks()), (3, 1));
    owners.apply(second + Duration::from_secs(1), &[], true);
    owners.owner(10);
    assert_eq!((owners.unknown_cgroups(), owners.walks()), (3, 1));
    // An event that comes late gives the id its owner.
    owners.apply(second + Duration::from_secs(2), &[created(10, "/late.service")], true);
    assert_eq!(owners.owner(10).unit(), Some("late.service"));
}

#[test]
fn an_unknown_id_that_does_nothing_for_five_minutes_counts_as_removed() {
    let start = Instant::now();
    let mut owners = owners(start);
    let at = |seconds| start + Duration::from_secs(seconds);
    owners.apply(at(1), &[], true);
    owners.owner(10);
    owners.apply(at(200), &[], true);
    owners.owner(11);
    owners.apply(at(400), &[], false);
    assert_eq!(owners.take_removed(), [10]);
    owners.apply(at(600), &[], false);
    assert_eq!(owners.take_removed(), [11]);
}

#[test]
fn churn_leaves_a_bounded_number_of_removed_ids() {
    let start = Instant::now();
    let mut owners = owners(start);
    for id in 1..=20_000 {
        owners.apply(start, &[created(id, &format!("/job{id}")), removed(id)], true);
    }
    assert_eq!(owners.cgroups.len(), MAX_REMOVED);
    // The kernel and the units unknown and other have no cgroup.
    assert_eq!(owners.roster.known().count(), MAX_REMOVED + 3);
    assert_eq!(owners.owner(20_000).unit(), Some("/job20000"));
}

#[test]
fn a_pods_first_container_is_known_as_long_as_its_cgroup() {
    let start = Instant::now();
    let mut owners = owners(start);
    let container = format!("{POD}/{ID}");
    let events = [created(1, POD), created(2, &container), removed(2), removed(1)];
    owners.apply(start, &events, true);
    let uid = "d1578427-1919-52ea-898e-2489f38c2504";
    owners.apply(start + Duration::from_secs(179), &[], true);
    assert_eq!(owners.firsts().of(uid).map(|id| &**id), Some(ID));
    owners.apply(start + Duration::from_secs(180), &[], true);
    assert_eq!(owners.firsts().of(uid), None);
}

#[test]
fn without_lost_events_the_hierarchy_is_walked_every_five_minutes() {
    let start = Instant::now();
    let mut owners = owners(start);
    for second in 1..=900 {
        owners.apply(start + Duration::from_secs(second), &[], true);
    }
    assert_eq!(owners.walks(), 3);
    owners.apply(start + Duration::from_secs(901), &[], false);
    assert_eq!(owners.walks(), 4);
}

#[test]
fn below_one_holder_five_hundred_units_have_rows_and_the_rest_is_the_holders() {
    let start = Instant::now();
    let mut owners = owners(start);
    let below = |n: u64| format!("/user.slice/user@1.service/app.slice/{n}.service");
    let events: Vec<_> = (1..=600).map(|n| created(n, &below(n))).collect();
    owners.apply(start, &events, true);
    assert_eq!(owners.alive().len(), 501);
    assert_eq!(owners.owner(500).unit(), Some("user@1.service/500.service"));
    assert_eq!(owners.owner(501).unit(), Some("user@1.service"));
    owners.apply(
        start,
        &[created(700, "/system.slice/a.service"), created(701, "/user.slice/user@2.service/a.service")],
        true,
    );
    assert_eq!(owners.owner(700).unit(), Some("a.service"));
    assert_eq!(owners.owner(701).unit(), Some("user@2.service/a.service"), "another holder has room");
    // One goes and another has its place; what was the holder's stays there.
    owners.apply(start, &[removed(7), created(702, &below(702)), created(703, &below(703))], true);
    assert_eq!(owners.owner(702).unit(), Some("user@1.service/702.service"));
    assert_eq!(owners.owner(703).unit(), Some("user@1.service"));
    assert_eq!(owners.owner(600).unit(), Some("user@1.service"));
    let all: Vec<_> = (1..=703).map(removed).collect();
    owners.apply(start, &all, true);
    assert_eq!(owners.roster.held, HeldWorkloads::default(), "nothing is counted any more");
}

#[test]
fn a_scope_lives_on_in_its_slice() {
    let start = Instant::now();
    let mut owners = owners(start);
    let slice = "/user.slice/user-1.slice";
    owners.apply(start, &[created(1, slice), created(2, &format!("{slice}/session-3.scope")), removed(2)], true);
    assert!(Arc::ptr_eq(&owners.owner(1), &owners.owner(2)));
    let slice = owners.owner(1);
    assert!(owners.is_alive(&slice));
}

/// Its folder is too deep for any walk.
#[test]
fn a_cgroup_too_deep_for_a_walk_lives_until_its_removal_is_told_or_events_were_lost() {
    let start = Instant::now();
    let root = tempfile::tempdir().unwrap();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut owners = Owners::open(root.path(), start).unwrap();
    fs::create_dir_all(root.path().join(&POD[1..])).unwrap();
    let deep = |id| CgroupEvent::CreatedDeep { id, above: format!("{POD}/a") };
    let (charged, idle, ending) = (CgroupId::MAX - 9, CgroupId::MAX - 8, CgroupId::MAX - 7);
    owners.apply(at(1), &[deep(charged), deep(idle), deep(ending)], true);
    let uid = Some("d1578427-1919-52ea-898e-2489f38c2504");
    for second in [2, 400, 800, 1200] {
        owners.apply(at(second), &[], true);
        assert_eq!(owners.owner(charged).pod_uid().map(|uid| &**uid), uid, "{second}");
        assert_eq!(owners.take_removed(), [0_u64; 0], "{second}");
    }
    owners.apply(at(1201), &[removed(ending)], true);
    assert_eq!(owners.take_removed(), [ending]);
    // Events were lost: perhaps the end of one that does nothing.
    owners.apply(at(1202), &[], false);
    assert_eq!(owners.take_removed(), [idle]);
    owners.apply(at(1203), &[], true);
    owners.owner(charged);
    owners.apply(at(1503), &[], true);
    assert_eq!(owners.take_removed(), [0_u64; 0], "it did something after the loss");
    owners.apply(at(1504), &[], false);
    assert_eq!(owners.take_removed(), [charged], "and nothing for five minutes before the next");
}

#[test]
fn a_hypervisor_stays_its_pods_whatever_sandbox_a_user_makes() {
    let other = POD.replace("d1578427", "99999999");
    let own = created(1, &format!("{POD}/{ID}"));
    let users = created(2, &format!("/user.slice/user-1000.slice/user@1000.service{other}/{ID}"));
    let overhead = created(3, &format!("/kata_overhead/{ID}"));
    for events in [[own.clone(), users.clone(), overhead.clone()], [users.clone(), overhead.clone(), own]] {
        let mut owners = owners(Instant::now());
        owners.apply(owners.now, &events, true);
        assert!(Arc::ptr_eq(&owners.owner(1), &owners.owner(3)), "{:?}", owners.owner(3));
    }
    // A kubelet with a folder of its own, whose pods no source reports.
    let mut with_root = owners(Instant::now());
    let rooted = created(1, &format!("/a.slice/root{POD}/{ID}"));
    with_root.apply(with_root.now, &[users.clone(), rooted, overhead.clone()], true);
    assert!(Arc::ptr_eq(&with_root.owner(1), &with_root.owner(3)), "{:?}", with_root.owner(3));
    for folder in
        ["lxc.payload.c1", "lxc/101", &format!("docker/{}", ID.replace('e', "f")), "system.slice/own.service/a"]
    {
        let mut owners = owners(Instant::now());
        let below = created(1, &format!("/{folder}{POD}/{ID}"));
        owners.apply(owners.now, &[below, overhead.clone()], true);
        assert_eq!(owners.owner(3).unit(), Some(&*format!("/kata_overhead/{ID}")), "{folder}");
    }
    let mut owners = owners(Instant::now());
    owners.apply(owners.now, &[users, overhead], true);
    assert_eq!(owners.owner(3).unit(), Some(&*format!("/kata_overhead/{ID}")));
}

#[test]
fn however_many_places_change_all_is_placed_once_a_tick() {
    let user = "/user.slice/user-1000.slice/user@1000.service";
    let uid = |n: u64| format!("d1578427-1919-52ea-898e-{n:012x}");
    let mut owners = owners(Instant::now());
    // Each second one takes the name of the first.
    let deep = (1..=300).map(|n| created(n, &format!("{user}/a/kubepods/pod{}", uid(n))));
    let less = (1..=300).map(|n| created(1000 + n, &format!("/u/kubepods/pod{}", uid(n))));
    let events: Vec<_> = deep.chain(less).collect();
    owners.apply(owners.now, &events, true);
    assert_eq!(owners.owner(1).unit(), Some("user@1000.service"));
    assert_eq!(owners.owner(1001).pod_uid().map(|it| &**it), Some(&*uid(1)));
    assert_eq!(owners.placings, 1);
    // The node's own pod, whose path is longer, and its cgroup.
    let slice = format!("kubepods-burstable-pod{}.slice", uid(1).replace('-', "_"));
    let own = format!("/kubepods.slice/kubepods-burstable.slice/{slice}");
    owners.apply(owners.now, &[created(2000, &own)], true);
    assert_eq!(owners.owner(2000).pod_uid().map(|it| &**it), Some(&*uid(1)));
    assert_eq!(owners.owner(1001).unit(), Some("/u/kubepods/pod".to_owned() + &uid(1)).as_deref());
    assert_eq!(owners.pod_cgroup(&uid(1)).map(|path| &**path), Some(&own[1..]));
}

/// In whatever order they are seen.
#[test]
fn a_payload_in_a_service_has_no_row_of_a_container_that_was_before_it_or_has_a_scope() {
    let scope = |id| created(id, &format!("/machine.slice/libpod-{ID}.scope"));
    let payload = |id, service: &str| created(id, &format!("/system.slice/{service}/libpod-payload-{ID}"));
    for (own, others) in [(scope(1), payload(2, "ci.service")), (payload(1, "shop.service"), payload(2, "ci.service"))]
    {
        for events in [[own.clone(), others.clone()], [others.clone(), own.clone()]] {
            let mut owners = owners(Instant::now());
            owners.apply(owners.now, &events, true);
            assert_eq!(*owners.owner(2), Workload::Unit { unit: Arc::from("ci.service") }, "{events:?}");
            assert_eq!(owners.owner(1).container_id().map(|id| &**id), Some(ID));
        }
    }
    let mut owners = owners(Instant::now());
    owners.apply(owners.now, &[payload(1, "ci.service"), scope(2)], true);
    assert_eq!(*owners.owner(1), Workload::Unit { unit: Arc::from("ci.service") }, "the scope is the node's");
    assert_eq!(owners.owner(2).container_id().map(|id| &**id), Some(ID));
}

#[test]
fn containers_and_pods_that_nobody_tells_of_are_bounded_below_their_holder_too() {
    let user = "/user.slice/user-1000.slice/user@1000.service";
    let uid = |n: u64| format!("d1578427-1919-52ea-898e-{n:012x}");
    for (holder, form) in [
        ("user@1000.service", format!("{user}/a/NUMBER")),
        ("/lxc.payload.c1", "/lxc.payload.c1/docker/NUMBER".to_owned()),
        ("user@1000.service", format!("{user}/kubepods/podUID")),
        ("user@1000.service", format!("{user}/NUMBER.service/kubepods/podUID/{ID}")),
        ("ci.service", "/system.slice/ci.service/libpod-payload-NUMBER".to_owned()),
    ] {
        let path = |n: u64| form.replace("NUMBER", &format!("{n:064x}")).replace("UID", &uid(n));
        for pattern in ["", "sshd.service"] {
            let mut owners = owners(Instant::now());
            owners.choose(&Units::matching(pattern).unwrap());
            let events: Vec<_> = (1..=600).map(|n| created(n, &path(n))).collect();
            owners.apply(owners.now, &events, true);
            assert_eq!(owners.alive().len(), 501, "{form} {pattern}");
            assert_ne!(owners.owner(500), owners.owner(501), "{form} {pattern}");
            let overflow = if pattern.is_empty() { holder } else { OTHER_UNIT };
            assert_eq!(*owners.owner(600), Workload::Unit { unit: Arc::from(overflow) }, "{form} {pattern}");
            let all: Vec<_> = (1..=600).map(removed).collect();
            owners.apply(owners.now, &all, true);
            assert_eq!(owners.roster.held, HeldWorkloads::default(), "nothing is counted any more");
        }
    }
}

#[test]
fn pods_of_a_node_in_a_container_are_not_bounded_once_they_are_told() {
    let uid = |n: u64| format!("d1578427-1919-52ea-898e-{n:012x}");
    let mut owners = owners(Instant::now());
    let node = format!("/system.slice/docker-{ID}.scope/kubepods");
    let events: Vec<_> = (1..=600).map(|n| created(n, &format!("{node}/pod{}", uid(n)))).collect();
    owners.apply(owners.now, &events, true);
    let pod = |n: u64| energy_model::workload::names::Pod { uid: uid(n).into(), ..Default::default() };
    let by_uid = (1..=600).map(|n| (Arc::from(uid(n)), Arc::new(pod(n)))).collect();
    owners.tell(&Arc::new(Pods { by_uid, ..Pods::default() }));
    for n in 1..=600 {
        assert_eq!(owners.owner(n).pod_uid().map(|it| &**it), Some(&*uid(n)));
    }
    assert_eq!(owners.roster.held, HeldWorkloads::default(), "those that came before they were told take no room");
}

/// Their cgroups are made by the kubelet alone, however many there are.
#[test]
fn pods_of_a_kubelet_with_a_folder_of_its_own_are_not_bounded_though_nobody_tells_of_them() {
    let uid = |n: u64| format!("d1578427-1919-52ea-898e-{n:012x}");
    let mut owners = owners(Instant::now());
    let events: Vec<_> =
        (1..=600).map(|n| created(n, &format!("/own/kubepods/burstable/pod{}/{ID}", uid(n)))).collect();
    owners.apply(owners.now, &events, true);
    for n in 1..=600 {
        assert_eq!(owners.owner(n).pod_uid().map(|it| &**it), Some(&*uid(n)));
    }
}

#[test]
fn one_jobs_steps_leave_room_for_another_jobs() {
    let step = |job: u64, n: u64| format!("/system.slice/slurmstepd.scope/job_{job}/step_{n}");
    let mut owners = owners(Instant::now());
    let events: Vec<_> = (1..=600).map(|n| created(n, &step(1, n))).collect();
    owners.apply(owners.now, &events, true);
    owners.apply(owners.now, &[created(700, &step(2, 0))], true);
    assert_eq!(owners.owner(600).unit(), Some("slurmstepd.scope/job_1"));
    assert_eq!(owners.owner(700).unit(), Some("slurmstepd.scope/job_2/step_0"));
}

#[test]
fn a_container_keeps_its_unit_in_cgroups_that_are_made_later() {
    let scope = format!("/system.slice/docker-{ID}.scope");
    let mut owners = owners(Instant::now());
    owners.apply(owners.now, &[created(1, &scope)], true);
    let before = owners.owner(1);
    owners.choose(&Units::matching("sshd.service").unwrap());
    owners.apply(owners.now, &[created(2, &format!("{scope}/init"))], true);
    assert!(Arc::ptr_eq(&owners.owner(2), &before), "{:?}", owners.owner(2));
    // Until it ends.
    owners.apply(owners.now, &[removed(1), removed(2), created(3, &scope)], true);
    assert_eq!(owners.owner(3).unit(), Some(OTHER_UNIT));
}
