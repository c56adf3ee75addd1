//! Event sets: critical errors (XIDs) as they come.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError};

use crate::abi::put;
use crate::returns::Return;
use crate::world::{Call, system, whole_gpu};

super::export! {
    fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) {
        let mut call = system(NAME)?;
        let sets = &mut call.world().event_sets;
        sets.push(Some(BTreeMap::new()));
        put(set, std::ptr::without_provenance_mut(sets.len()))
    }

    fn nvmlDeviceGetSupportedEventTypes(handle: nvmlDevice_t, types: *mut c_ulonglong) {
        drop(whole_gpu(NAME, handle)?);
        put(types, u64::from(nvmlEventTypeXidCriticalError))
    }

    fn nvmlDeviceRegisterEvents(handle: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t) {
        let mut device = whole_gpu(NAME, handle)?;
        if types & !u64::from(nvmlEventTypeXidCriticalError) != 0 {
            return Err(Return::NotSupported);
        }
        let (uuid, so_far) = (device.gpu().uuid.clone(), device.gpu().xids.len());
        let told = told_by(&mut device.world().event_sets, set)?;
        told.insert(uuid, so_far);
        Ok(())
    }

    fn nvmlEventSetWait_v2(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        let mut call = system(NAME)?;
        loop {
            if let Some((uuid, xid)) = next_xid(&mut call, set)? {
                return put(data, nvmlEventData_t {
                    device: call.world().handle(&uuid),
                    eventType: u64::from(nvmlEventTypeXidCriticalError),
                    eventData: xid,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                });
            }
            drop(call);
            if Instant::now() >= deadline {
                return Err(Return::Timeout);
            }
            thread::sleep(Duration::from_millis(10));
            call = Call::again()?;
        }
    }

    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        let mut call = system(NAME)?;
        let slot = set.addr().checked_sub(1).and_then(|index| call.world().event_sets.get_mut(index));
        slot.ok_or(Return::InvalidArgument)?.take().map(drop).ok_or(Return::InvalidArgument)
    }
}

type Told = BTreeMap<String, usize>;

fn told_by(sets: &mut [Option<Told>], set: nvmlEventSet_t) -> Result<&mut Told, Return> {
    let slot = set.addr().checked_sub(1).and_then(|index| sets.get_mut(index));
    slot.and_then(Option::as_mut).ok_or(Return::InvalidArgument)
}

/// The next error that the set has not reported.
fn next_xid(call: &mut Call, set: nvmlEventSet_t) -> Result<Option<(String, u64)>, Return> {
    let xids: Vec<_> = call.state().gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.xids.clone())).collect();
    let told = told_by(&mut call.world().event_sets, set)?;
    for (uuid, xids) in xids {
        if let Some(number) = told.get_mut(&uuid)
            && let Some(&xid) = xids.get(*number)
        {
            *number += 1;
            return Ok(Some((uuid, xid)));
        }
    }
    Ok(None)
}
