//! The names by which the kubelet knows a GPU or a part of one, and which of them are the same device of the driver.

use std::sync::Arc;

use crate::gpu::{Gpu, GpuInstance};

/// Only devices of this vendor are looked at.
const VENDOR: &str = "nvidia.com/";
/// Resources whose devices may be named by a number. Other resources of the vendor are no GPUs: their device 0 is another's.
const NUMBERED: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];
/// DRA drivers of this vendor: its domain, and those below it (`gpu.nvidia.com`).
const DOMAIN: &str = "nvidia.com";

/// What a device plugin or a DRA driver calls a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceId {
    /// `GPU-...` or `MIG-...`: what NVIDIA's plugin says.
    Uuid(Arc<str>),
    /// NVML's index of a GPU: `0`.
    Index(u32),
    /// NVML's indices of a GPU and of a MIG device of it: `0:1`.
    MigIndex(u32, u32),
    /// The device file of a GPU: `nvidia0`, as GKE's plugin says.
    Minor(u32),
    /// The device file of a GPU, and a GPU instance of it: `nvidia0/gi1`.
    GpuInstance(u32, u32),
    /// A device of a claim.
    Claimed(Claimed),
}

/// A device of dynamic resource allocation: the three names together are one device of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claimed {
    pub driver: Arc<str>,
    pub pool: Arc<str>,
    pub device: Arc<str>,
}

impl DeviceId {
    /// What a device plugin calls a device of `resource`; `None` for other vendors, and for a name that no GPU has.
    #[must_use]
    pub fn of_plugin(resource: &str, id: &str) -> Option<Self> {
        resource.strip_prefix(VENDOR)?;
        // Shared devices are handed out in numbered copies: `GPU-...::3`, `nvidia0/vgpu3`.
        let id = id.split_once("::").map_or(id, |(id, _)| id);
        let id = id.split_once("/vgpu").map_or(id, |(id, _)| id);
        if is_uuid(id) {
            return Some(Self::Uuid(Arc::from(id)));
        }
        if !NUMBERED.iter().any(|prefix| resource.starts_with(prefix)) {
            return None;
        }
        match id.strip_prefix("nvidia") {
            Some(file) => Some(match file.split_once("/gi") {
                Some((minor, instance)) => Self::GpuInstance(number(minor)?, number(instance)?),
                None => Self::Minor(number(file)?),
            }),
            None => Some(match id.split_once(':') {
                Some((gpu, instance)) => Self::MigIndex(number(gpu)?, number(instance)?),
                None => Self::Index(number(id)?),
            }),
        }
    }

    /// A device of a claim; `None` for the drivers of other vendors, whose devices may have the same names.
    #[must_use]
    pub fn of_claim(driver: &str, pool: &str, device: &str) -> Option<Self> {
        let claimed = || Claimed { driver: driver.into(), pool: pool.into(), device: device.into() };
        is_nvidias(driver).then(|| Self::Claimed(claimed()))
    }

    /// A device of a claim by the name that the container runtime gets (`k8s.gpu.nvidia.com/gpu=GPU-...`), where that has a
    /// UUID.
    #[must_use]
    pub fn of_cdi(name: &str) -> Option<Self> {
        let (kind, device) = name.split_once('=')?;
        let (vendor, _class) = kind.split_once('/')?;
        (is_nvidias(vendor) && is_uuid(device)).then(|| Self::Uuid(device.into()))
    }

    /// All names of a GPU but that of a claim.
    #[must_use]
    pub fn of_gpu(gpu: &Gpu) -> Vec<Self> {
        let minor = gpu.minor.map(Self::Minor);
        [Self::Uuid(Arc::clone(&gpu.uuid)), Self::Index(gpu.index)].into_iter().chain(minor).collect()
    }

    /// All names of a MIG instance but that of a claim.
    #[must_use]
    pub fn of_instance(gpu: &Gpu, instance: &GpuInstance) -> Vec<Self> {
        let of_file = gpu.minor.map(|minor| Self::GpuInstance(minor, instance.id));
        let uuid = Self::Uuid(Arc::clone(&instance.uuid));
        [uuid, Self::MigIndex(gpu.index, instance.index)].into_iter().chain(of_file).collect()
    }
}

/// Whether a driver's or vendor's name is in NVIDIA's domain.
#[must_use]
pub fn is_nvidias(name: &str) -> bool {
    name.strip_suffix(DOMAIN).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether that is an NVML UUID of a GPU or a MIG device.
#[must_use]
pub fn is_uuid(id: &str) -> bool {
    id.starts_with("GPU-") || id.starts_with("MIG-")
}

/// Decimal digits alone: no sign, no space.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_name_is_read_in_every_form() {
        let gpu = |id: &str| DeviceId::of_plugin("nvidia.com/gpu", id);
        let uuid = |id: &str| Some(DeviceId::Uuid(id.into()));
        assert_eq!([gpu("GPU-a"), gpu("GPU-a::3"), gpu("MIG-b")], [uuid("GPU-a"), uuid("GPU-a"), uuid("MIG-b")]);
        assert_eq!([gpu("0"), gpu("11::2")], [Some(DeviceId::Index(0)), Some(DeviceId::Index(11))]);
        assert_eq!([gpu("nvidia0"), gpu("nvidia3/vgpu1")], [Some(DeviceId::Minor(0)), Some(DeviceId::Minor(3))]);
        assert_eq!(gpu("0:1"), Some(DeviceId::MigIndex(0, 1)));
        assert_eq!(DeviceId::of_plugin("nvidia.com/mig-1g.10gb", "0:1"), Some(DeviceId::MigIndex(0, 1)));
        assert_eq!([gpu("nvidia0/gi4"), gpu("nvidia0/gi4/vgpu0")], [const { Some(DeviceId::GpuInstance(0, 4)) }; 2]);
        for id in
            ["", "+1", "-1", "1 ", "nvidia", "nvidiactl", "nvidia0/", "nvidia0/gi", "0:", ":1", "99999999999", "a"]
        {
            assert_eq!(gpu(id), None, "{id}");
        }
        // Device 0 of a network card, and of another vendor.
        for resource in ["nvidia.com/hostdev", "example.com/gpu", "example.com/nvidia.com/gpu"] {
            assert_eq!(DeviceId::of_plugin(resource, "0"), None, "{resource}");
        }
        // A resource that the plugin's configuration calls otherwise.
        assert_eq!(DeviceId::of_plugin("nvidia.com/a100", "GPU-a"), uuid("GPU-a"));
    }

    #[test]
    fn a_claims_device_is_nvidias_only_by_its_driver() {
        let claimed = |driver: &str| DeviceId::of_claim(driver, "worker-1", "gpu-0").is_some();
        assert!(claimed("gpu.nvidia.com") && claimed("nvidia.com"));
        for driver in ["", "fpga.example.com", "notnvidia.com", "gpu.nvidia.com.example.com", "nvidia.com/gpu"] {
            assert!(!claimed(driver), "{driver}");
        }
        assert_eq!(DeviceId::of_cdi("k8s.gpu.nvidia.com/gpu=GPU-a"), Some(DeviceId::Uuid("GPU-a".into())));
        for name in ["k8s.gpu.nvidia.com/gpu=gpu-0", "example.com/gpu=GPU-a", "nvidia.com=GPU-a", "GPU-a"] {
            assert_eq!(DeviceId::of_cdi(name), None, "{name}");
        }
    }

    #[test]
    fn a_gpu_is_known_by_index_and_by_device_file() {
        // The driver counts device files in the order in which it found the cards, NVML by their place on the bus.
        let gpu = Gpu { uuid: "GPU-a".into(), index: 1, minor: Some(0), name: "H100".into() };
        let ids = |gpu: &Gpu| DeviceId::of_gpu(gpu);
        assert_eq!(ids(&gpu), [DeviceId::Uuid("GPU-a".into()), DeviceId::Index(1), DeviceId::Minor(0)]);
        let instance = GpuInstance { id: 4, uuid: "MIG-b".into(), index: 2, slices: 1, activity_ppm: None };
        let ids = DeviceId::of_instance(&gpu, &instance);
        assert_eq!(ids, [DeviceId::Uuid("MIG-b".into()), DeviceId::MigIndex(1, 2), DeviceId::GpuInstance(0, 4)]);
        assert_eq!(DeviceId::of_gpu(&Gpu { minor: None, ..gpu }).len(), 2);
    }
}
