//! The CUDA side: the driver is loaded and the kernel compiled when a device is asked for.

mod kernel;
mod memory;
mod ring;

use std::any::Any;
use std::panic::catch_unwind;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, DriverError};

use super::DeviceError;
use kernel::MoveRows;

pub(super) use memory::CudaMemory;

/// A device that works: its context and its kernel.
pub(super) struct CudaDevice {
    context: Arc<CudaContext>,
    move_rows: MoveRows,
    name: String,
}

impl CudaDevice {
    pub(super) fn open(ordinal: usize) -> Result<Self, DeviceError> {
        // The binding panics when a library is missing or lacks a function.
        check_libraries()?;
        catch_unwind(|| Self::open_present(ordinal)).unwrap_or_else(|panic| {
            Err(DeviceError::Unusable { reason: message_of(panic.as_ref()) })
        })
    }

    fn open_present(ordinal: usize) -> Result<Self, DeviceError> {
        let n_devices = CudaContext::device_count().map_err(failed("start the driver"))?;
        let n_devices = usize::try_from(n_devices).unwrap_or(0);
        if ordinal >= n_devices {
            return Err(DeviceError::NoDevice { ordinal, n_devices });
        }
        let context = CudaContext::new(ordinal).map_err(failed("open the device"))?;
        let name = context.name().map_err(failed("name the device"))?;
        let move_rows = MoveRows::compile(&context)?;
        Ok(Self { context, move_rows, name })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn free_bytes(&self) -> Result<u64, DeviceError> {
        let (free, _total) = self.context.mem_get_info().map_err(failed("tell its free memory"))?;
        Ok(free as u64)
    }
}

/// Copies the first bytes of a tensor to host memory, after everything that writes them.
pub(super) fn read_tensor(tensor: &CudaSlice<u8>, out: &mut [u8]) -> Result<(), DeviceError> {
    let stream = tensor.stream();
    let copied = stream.memcpy_dtoh(&tensor.slice(..out.len()), out);
    // Whatever became of the copy, it must not continue after this call.
    let finished = stream.synchronize();
    copied.and(finished).map_err(failed("copy a batch to the host"))
}

#[expect(unsafe_code, reason = "to see whether a library is there means to load it")]
fn check_libraries() -> Result<(), DeviceError> {
    // SAFETY: loading runs the initialisers of the library that the loader finds under NVIDIA's
    // name. Like every dynamically linked program we trust the loader's path.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary { library: "libcuda.so" });
    }
    // SAFETY: as above.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary { library: "libnvrtc.so" });
    }
    Ok(())
}

fn failed(action: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |source| DeviceError::Driver { action, source }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given").to_owned()
}
