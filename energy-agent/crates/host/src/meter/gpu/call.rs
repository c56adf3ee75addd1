//! The calls of NVML that the agent makes, by the names that its messages give them.

use std::fmt;

/// A call, or a few that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NvmlCall {
    Architecture,
    ClockRangeOfState,
    ComputeProcesses,
    DefaultPowerLimit,
    DeviceCount,
    EnforcedPowerLimit,
    EventSetCreate,
    EventSetWait,
    GraphicsProcesses,
    HandleByIndex,
    Init,
    LockClocks,
    MaxClock,
    MemoryClock,
    MemoryInfo,
    MigInstances,
    MigMode,
    MpsProcesses,
    PowerLimit,
    PowerLimitConstraints,
    PowerSamples,
    PowerUsage,
    ProcessUtilization,
    RegisterEvents,
    ResetClocks,
    SetPowerLimit,
    SmClock,
    SupportedEventTypes,
    SupportedGraphicsClocks,
    SupportedMemoryClocks,
    Temperature,
    ThrottleReasons,
    TotalEnergy,
    UtilizationRates,
    Uuid,
    VirtualizationMode,
}

energy_model::as_str!(NvmlCall {
    Architecture => "nvmlDeviceGetArchitecture",
    ClockRangeOfState => "nvmlDeviceGetMinMaxClockOfPState",
    ComputeProcesses => "nvmlDeviceGetComputeRunningProcesses_v3",
    DefaultPowerLimit => "nvmlDeviceGetPowerManagementDefaultLimit",
    DeviceCount => "nvmlDeviceGetCount_v2",
    EnforcedPowerLimit => "nvmlDeviceGetEnforcedPowerLimit",
    EventSetCreate => "nvmlEventSetCreate",
    EventSetWait => "nvmlEventSetWait_v2",
    GraphicsProcesses => "nvmlDeviceGetGraphicsRunningProcesses_v3",
    HandleByIndex => "nvmlDeviceGetHandleByIndex_v2",
    Init => "nvmlInit_v2",
    LockClocks => "nvmlDeviceSetGpuLockedClocks",
    MaxClock => "nvmlDeviceGetMaxClockInfo",
    MemoryClock => "nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
    MemoryInfo => "nvmlDeviceGetMemoryInfo_v2",
    MigInstances => "MIG instances",
    MigMode => "nvmlDeviceGetMigMode",
    MpsProcesses => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    PowerLimit => "nvmlDeviceGetPowerManagementLimit",
    PowerLimitConstraints => "nvmlDeviceGetPowerManagementLimitConstraints",
    PowerSamples => "nvmlDeviceGetSamples(NVML_TOTAL_POWER_SAMPLES)",
    PowerUsage => "nvmlDeviceGetPowerUsage",
    ProcessUtilization => "nvmlDeviceGetProcessUtilization",
    RegisterEvents => "nvmlDeviceRegisterEvents",
    ResetClocks => "nvmlDeviceResetGpuLockedClocks",
    SetPowerLimit => "nvmlDeviceSetPowerManagementLimit",
    SmClock => "nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
    SupportedEventTypes => "nvmlDeviceGetSupportedEventTypes",
    SupportedGraphicsClocks => "nvmlDeviceGetSupportedGraphicsClocks",
    SupportedMemoryClocks => "nvmlDeviceGetSupportedMemoryClocks",
    Temperature => "nvmlDeviceGetTemperature",
    ThrottleReasons => "nvmlDeviceGetCurrentClocksThrottleReasons",
    TotalEnergy => "nvmlDeviceGetTotalEnergyConsumption",
    UtilizationRates => "nvmlDeviceGetUtilizationRates",
    Uuid => "nvmlDeviceGetUUID",
    VirtualizationMode => "nvmlDeviceGetVirtualizationMode",
});

impl fmt::Display for NvmlCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
