//! Records of the kernel side's ring buffers: cgroups that came and went, and what became of processes.

use energy_ebpf::{
    CgroupCreated, CgroupRemoved, EXE_LEN, PATH_LEN, Process, ProcessExecuted, ProcessExited, ProcessRenamed,
};
use energy_model::sample::CgroupEvent;
use energy_model::sample::ProcessEvent;

/// One record of the ring buffer. Of a path that may have been cut the last part is left out: it may be half a name.
pub fn parse(record: &[u8]) -> Option<CgroupEvent> {
    let id = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    if record.len() < size_of::<CgroupCreated>() {
        return (record.len() >= size_of::<CgroupRemoved>()).then_some(CgroupEvent::Removed { id });
    }
    let len = i64::from_ne_bytes(record.get(8..16)?.try_into().ok()?);
    let len = usize::try_from(len).ok().filter(|len| (2..=PATH_LEN).contains(len))?;
    let path = record.get(16..16 + len - 1)?;
    if len < PATH_LEN {
        return Some(CgroupEvent::Created { id, path: String::from_utf8_lossy(path).into_owned() });
    }
    let end = path.iter().rposition(|&byte| byte == b'/')?.max(1);
    Some(CgroupEvent::CreatedDeep { id, above: String::from_utf8_lossy(&path[..end]).into_owned() })
}

/// One record of the ring buffer of processes.
pub(crate) fn parse_process(record: &[u8]) -> Option<(Process, ProcessEvent)> {
    let word = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let process = Process { pid: word(0)?, start_ns: word(8)? };
    let event = match record.len() {
        len if len >= size_of::<ProcessExecuted>() => {
            let len = usize::try_from(word(16)?.cast_signed()).unwrap_or(0).min(EXE_LEN);
            let path = record.get(24..24 + len.saturating_sub(1))?;
            ProcessEvent::Executed(String::from_utf8_lossy(path).into_owned())
        }
        len if len >= size_of::<ProcessRenamed>() => ProcessEvent::Renamed([word(16)?, word(24)?]),
        len if len >= size_of::<ProcessExited>() => ProcessEvent::Exited,
        _ => return None,
    };
    Some((process, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(id: u64, len: i64, path: &[u8]) -> Vec<u8> {
        let mut record = [id.to_ne_bytes(), len.to_ne_bytes()].concat();
        record.extend(path);
        record.resize(size_of::<CgroupCreated>(), 0);
        record
    }

    #[test]
    fn events_are_told_apart_by_size_and_of_a_cut_path_the_cgroup_above_is_told() {
        let made = CgroupEvent::Created { id: 5, path: "/a/b".to_owned() };
        assert_eq!(parse(&created(5, 5, b"/a/b\0")), Some(made));
        assert_eq!(parse(&6_u64.to_ne_bytes()), Some(CgroupEvent::Removed { id: 6 }));
        let deep = |above: &str, name: &str| {
            let path = format!("{above}/{name}{}\0", "x".repeat(510 - above.len() - name.len()));
            assert_eq!(path.len(), 512);
            (
                parse(&created(5, 512, path.as_bytes())),
                Some(CgroupEvent::CreatedDeep { id: 5, above: above.to_owned() }),
            )
        };
        for (told, wanted) in [deep("/a/b", "c"), deep("/kubepods", "")] {
            assert_eq!(told, wanted);
        }
        let of_the_root = created(5, 512, format!("/{}\0", "x".repeat(510)).as_bytes());
        assert_eq!(parse(&of_the_root), Some(CgroupEvent::CreatedDeep { id: 5, above: "/".to_owned() }));
        assert_eq!(parse(&created(5, 512, &[b'x'; 512])), None, "the kernel's paths begin with /");
        assert_eq!(parse(&created(5, 513, &[b'/'; 512])), None);
        assert_eq!(parse(&created(5, -14, b"")), None);
        assert_eq!(parse(b"short"), None);
    }

    #[test]
    fn process_events_are_told_apart_by_size_and_an_unreadable_path_is_empty() {
        let process = Process { pid: 7, start_ns: 9 };
        let record = |rest: &[u8]| [7_u64.to_ne_bytes().as_slice(), &9_u64.to_ne_bytes(), rest].concat();
        let executed = |len: i64| {
            let mut path = b"/bin/a\0".to_vec();
            path.resize(EXE_LEN, b'x');
            parse_process(&record(&[len.to_ne_bytes().as_slice(), &path].concat()))
        };
        assert_eq!(executed(7), Some((process, ProcessEvent::Executed("/bin/a".to_owned()))));
        assert_eq!(executed(-14), Some((process, ProcessEvent::Executed(String::new()))));
        assert_eq!(executed(1000).map(|(process, _)| process.pid), Some(7));
        let name = [1_u64.to_ne_bytes(), 2_u64.to_ne_bytes()].concat();
        assert_eq!(parse_process(&record(&name)), Some((process, ProcessEvent::Renamed([1, 2]))));
        assert_eq!(parse_process(&record(&[])), Some((process, ProcessEvent::Exited)));
        assert_eq!(parse_process(b"short"), None);
    }
}
