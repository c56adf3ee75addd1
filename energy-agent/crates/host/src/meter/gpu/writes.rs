//! A write of a GPU's knob on its way: from the tick to the GPU's thread ([`GpuMeter::write`]), there to the driver
//! ([`Worker::write`], [`Knobs::write`](super::knobs::Knobs::write)), and back ([`GpuMeter::take_written`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, Knob, KnobValue};

use super::reader::{GpuReader, ReaderMemory};
use super::worker::{GpuRequest, Worker, WriteAnswer};
use super::{GpuMeter, Written};

impl GpuMeter {
    /// Every knob of GPUs that are or were readable, as last found.
    ///
    /// A power limit is read with every reading, so a foreign write shows. Locked clocks cannot be read: the value is what
    /// was written last in this epoch, `None` otherwise. Epochs count within this process: another number is a handle that
    /// was fetched anew, after a driver reload or a loss, where the limit does not say that nothing was forgotten.
    #[must_use]
    pub fn knobs(&self) -> BTreeMap<Knob, Found> {
        let all = self.devices.values().flat_map(|device| {
            let out_of_reach = !device.is_in_reach();
            device.pending.found().iter().map(move |(knob, found)| {
                let hidden = out_of_reach && found.state == KnobState::Ok;
                let state = if hidden { KnobState::Unreachable } else { found.state };
                (knob.clone(), Found { state, ..found.clone() })
            })
        });
        all.collect()
    }

    /// Sends one write to the GPU's thread, which makes it at once and in the order of sending.
    ///
    /// `false` where it cannot take one now (not read yet, hanging, gone, or a write of the same knob is outstanding): try
    /// at the next tick.
    pub fn write(&mut self, knob: &Knob, value: KnobValue) -> bool {
        let (Knob::GpuClock(uuid) | Knob::GpuPower(uuid)) = knob else { return false };
        let Some(device) = self.devices.get_mut(uuid).filter(|device| device.is_in_reach()) else { return false };
        let requests = device.worker.as_ref().and_then(|worker| worker.requests.as_ref());
        let Some(requests) = requests.filter(|_| device.pending.is_free(knob)) else { return false };
        // `Worker::write` below takes it.
        let sent = requests.send(GpuRequest::Write(knob.clone(), value.clone())).is_ok();
        if sent {
            device.pending.sent(knob, value, Instant::now());
        }
        sent
    }

    /// What became of writes since the last call. Never waits.
    pub fn take_written(&mut self) -> Vec<Written> {
        while let Ok(message) = self.messages.try_recv() {
            self.receive(message, Instant::now());
        }
        std::mem::take(&mut self.written)
    }

    /// Waits for outstanding writes, at most until then. For shutdown and restore.
    pub fn settle(&mut self, until: Instant) {
        while self.devices.values().any(|device| device.pending.is_waiting()) {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => self.receive(message, Instant::now()),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    pub(super) fn wrote(&mut self, answer: WriteAnswer, now: Instant) {
        let WriteAnswer { gpu, knob, result, probed } = answer;
        let Some(device) = self.devices.get_mut(&gpu.uuid) else { return };
        if let Some(probed) = probed {
            device.pending.probed(probed);
        }
        self.written.extend(device.pending.written(knob, result, now));
        if device.let_go() {
            self.next = now;
        }
    }

    /// Gives up the writes of threads that have ended, once all that they sent is taken.
    pub(super) fn abandon_writes(&mut self, now: Instant) {
        while let Ok(message) = self.messages.try_recv() {
            self.receive(message, now);
        }
        for device in self.devices.values_mut().filter(|device| device.worker.is_none()) {
            self.written.extend(device.pending.abandon());
        }
    }
}

impl Worker {
    /// Makes a write, on the GPU's thread: the call that may hang.
    pub(super) fn write<'n>(
        &'n self,
        reader: &mut Option<GpuReader<'n>>,
        memory: &mut ReaderMemory,
        knob: Knob,
        value: &KnobValue,
    ) -> WriteAnswer {
        let written = self.with(reader, memory, |reader, _| {
            let (device, knobs) = reader.knobs(&self.target)?;
            Ok(knobs.write(device, &knob, value))
        });
        WriteAnswer {
            gpu: Arc::clone(&self.target.gpu),
            knob,
            result: written.unwrap_or_else(|failure| Err(failure.into())),
            probed: reader.as_mut().and_then(|reader| reader.probed.take()),
        }
    }
}
