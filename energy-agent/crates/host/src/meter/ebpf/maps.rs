//! Direct access to the maps that are read every tick: a whole hash map in one system call, and the per-CPU slots
//! through a memory mapping, which wakes no CPU.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result};
use energy_ebpf::{Process, Slot};

// Commands of bpf(2): <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h>.
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;

#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// # Safety
/// `attr` is the struct that `command` expects, and every address in it is valid for what the command does with it.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<()> {
    // SAFETY: by the caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn fd_number(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).expect("an open descriptor is not negative")
}

fn address<T>(pointer: *const T) -> u64 {
    u64::try_from(pointer.addr()).expect("addresses have at most 64 bits")
}

/// A hash map of plain structs: `USAGE` or `PROCESSES`.
pub struct HashMap<K, V> {
    name: &'static str,
    fd: OwnedFd,
    keys: Vec<K>,
    values: Vec<V>,
}

impl<K: Copy + Default, V: Copy + Default> HashMap<K, V> {
    /// # Safety
    /// `K` and `V` are what the map behind `fd` holds, byte for byte, and valid whatever the bytes are.
    pub unsafe fn new(name: &'static str, fd: OwnedFd, capacity: u32) -> Result<Self> {
        let capacity = usize::try_from(capacity).context("map size")?;
        let (keys, values) = (vec![K::default(); capacity], vec![V::default(); capacity]);
        Ok(Self { name, fd, keys, values })
    }

    /// Most entries.
    pub fn capacity(&self) -> usize {
        self.keys.len()
    }

    /// All entries, in no order. Entries that change meanwhile are old or new.
    pub fn read(&mut self) -> Result<impl Iterator<Item = (K, V)>> {
        let mut position = 0_u32;
        let mut attr = BatchAttr {
            in_batch: 0,
            out_batch: address(&raw mut position),
            keys: address(self.keys.as_mut_ptr()),
            values: address(self.values.as_mut_ptr()),
            count: u32::try_from(self.keys.len()).context("map size")?,
            map_fd: fd_number(self.fd.as_fd()),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: both buffers hold `count` elements of the map's key and value size, as long as the map can hold.
        match unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) } {
            // ENOENT says that the end of the map was reached.
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                return Err(error).with_context(|| format!("reading the map {} (BPF_MAP_LOOKUP_BATCH)", self.name));
            }
            _ => {}
        }
        let count = usize::try_from(attr.count).context("map size")?.min(self.keys.len());
        Ok(self.keys[..count].iter().copied().zip(self.values[..count].iter().copied()))
    }

    /// One entry; `None` when there is none.
    pub fn lookup(&self, key: &K) -> Result<Option<V>> {
        let mut value = V::default();
        match self.element(BPF_MAP_LOOKUP_ELEM, key, address(&raw mut value)) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("looking into the map {} (BPF_MAP_LOOKUP_ELEM)", self.name))
            }
        }
    }

    /// Removes an entry; one that is not there is no error.
    pub fn remove(&self, key: &K) -> io::Result<()> {
        match self.element(BPF_MAP_DELETE_ELEM, key, 0) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    /// A command on one entry; `value` is the address of a value, or 0 where the command takes none.
    fn element(&self, command: libc::c_int, key: &K, value: u64) -> io::Result<()> {
        let mut attr = ElementAttr {
            map_fd: fd_number(self.fd.as_fd()),
            padding: 0,
            key: address(ptr::from_ref(key)),
            value,
            flags: 0,
        };
        // SAFETY: key and value are of the map's sizes and live through the call.
        unsafe { bpf(command, &mut attr) }
    }
}

/// Puts a perf counter into a `PERF_EVENT_ARRAY` at the index of its CPU.
pub fn set_counter(array: BorrowedFd<'_>, cpu: u32, counter: BorrowedFd<'_>) -> io::Result<()> {
    let counter = fd_number(counter);
    let mut attr = ElementAttr {
        map_fd: fd_number(array),
        padding: 0,
        key: address(&raw const cpu),
        value: address(&raw const counter),
        flags: 0,
    };
    // SAFETY: key and value are u32, as the map type has them, and live through the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }
}

/// The array map `SLOTS`, mapped into memory; one element per possible CPU.
pub struct Slots {
    base: ptr::NonNull<Slot>,
    count: usize,
}

// SAFETY: the mapping is owned by this value alone and is not bound to a thread.
unsafe impl Send for Slots {}

impl Slots {
    pub fn map(fd: BorrowedFd<'_>, count: usize) -> Result<Self> {
        // SAFETY: a fresh mapping of a map that was made with BPF_F_MMAPABLE and has `count` elements.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                count * size_of::<Slot>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("mapping the slots into memory");
        }
        Ok(Self { base: ptr::NonNull::new(base.cast()).context("mapping the slots into memory")?, count })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The slots of all possible CPUs.
    pub(crate) fn read_all(&self) -> Vec<Slot> {
        (0..self.count).map(|cpu| self.read(cpu)).collect()
    }

    /// A CPU's slot, whole if it stood still for the length of a copy, which is less than between two switches; after some
    /// tries as it is, because a torn copy only moves time between two readings.
    fn read(&self, cpu: usize) -> Slot {
        assert!(cpu < self.count, "slot of a possible CPU");
        // SAFETY: within the mapping; the kernel side writes whole words, and volatile keeps the copies apart.
        unsafe {
            let slot = self.base.as_ptr().add(cpu);
            let seq = &raw const (*slot).seq;
            let mut copy = Slot::default();
            for _ in 0..16 {
                let before = seq.read_volatile();
                fence(Ordering::Acquire);
                copy = slot.read_volatile();
                fence(Ordering::Acquire);
                if before.is_multiple_of(2) && seq.read_volatile() == before {
                    break;
                }
            }
            copy
        }
    }

    pub(crate) fn set_domain(&mut self, cpu: usize, domain: u32) {
        assert!(cpu < self.count, "slot of a possible CPU");
        // SAFETY: within the mapping; the kernel side only reads this word.
        unsafe { (&raw mut (*self.base.as_ptr().add(cpu)).domain).write_volatile(u64::from(domain)) }
    }

    /// No process runs anywhere, as far as is known. Only while no program that accounts for processes is attached.
    pub(crate) fn clear_processes(&mut self) {
        for cpu in 0..self.count {
            // SAFETY: within the mapping; the other programs neither read nor write these words.
            unsafe {
                let slot = self.base.as_ptr().add(cpu);
                (&raw mut (*slot).process).write_volatile(Process::default());
                (&raw mut (*slot).process_ns).write_volatile(0);
            }
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; nothing borrowed from it outlives this value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.count * size_of::<Slot>()) };
    }
}
