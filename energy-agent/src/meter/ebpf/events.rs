//! Records of the kernel side's ring buffer: cgroups that came and went.

use energy_ebpf::{CgroupCreated, CgroupRemoved, PATH_LEN};

use crate::meter::CgroupEvent;

/// One record of the ring buffer. A path that was cut is left out, so that the tree is walked for it.
pub fn parse(record: &[u8]) -> Option<CgroupEvent> {
    let id = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    if record.len() < size_of::<CgroupCreated>() {
        return (record.len() >= size_of::<CgroupRemoved>()).then_some(CgroupEvent::Removed { id });
    }
    let len = i64::from_ne_bytes(record.get(8..16)?.try_into().ok()?);
    let len = usize::try_from(len).ok().filter(|len| (2..PATH_LEN).contains(len))?;
    let path = record.get(16..16 + len - 1)?;
    Some(CgroupEvent::Created { id, path: String::from_utf8_lossy(path).into_owned() })
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
    fn events_are_told_apart_by_size_and_cut_paths_are_left_to_the_walk() {
        let made = CgroupEvent::Created { id: 5, path: "/a/b".to_owned() };
        assert_eq!(parse(&created(5, 5, b"/a/b\0")), Some(made));
        assert_eq!(parse(&6_u64.to_ne_bytes()), Some(CgroupEvent::Removed { id: 6 }));
        assert_eq!(parse(&created(5, 512, &[b'x'; 512])), None);
        assert_eq!(parse(&created(5, -14, b"")), None);
        assert_eq!(parse(b"short"), None);
    }
}
