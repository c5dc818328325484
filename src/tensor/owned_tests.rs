use super::*;
use crate::base::thread;
use crate::driver::sim;
use crate::memory::unknown_pointer;
use crate::runtime;

#[test]
fn own_memory_is_freed_once() {
    let _lock = sim::test_lock();
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "sim", "memory=64MiB").unwrap();
    let gpus = runtime::get(&inside).unwrap();
    let device = &gpus.devices[0];
    let stream = device.streams.default();
    let float = Dtype::new(2, 32);
    let (tensor, pointers) = allocate(gpus, device, stream, float, &[3, 5]).unwrap();
    assert_eq!(tensor.strides(), [5, 1]);
    assert_eq!(memory::find(tensor.data).unwrap().requested, 60);
    assert_eq!(tensor.require_on(gpus).unwrap(), 0);
    let shape = pointers.shape as usize;
    assert!(is_ours(shape) && !is_read_only(shape, &tensor));
    assert!(take(shape, tensor.data + 4).is_err());
    take(shape, tensor.data).unwrap().end(&inside).unwrap();
    assert!(memory::find(tensor.data).is_err() && take(shape, tensor.data).is_err());
    // A tensor without elements has no memory.
    let (empty, pointers) = allocate(gpus, device, stream, float, &[0, 5]).unwrap();
    assert_eq!(empty.data, 0);
    take(pointers.shape as usize, 0).unwrap().end(&inside).unwrap();
    // After a shutdown the same address belongs to another block.
    let (old, pointers) = allocate(gpus, device, stream, float, &[1]).unwrap();
    runtime::shutdown(&inside, |_| 0).unwrap();
    let gpus = runtime::get(&inside).unwrap();
    let device = &gpus.devices[0];
    let stream = device.streams.default();
    let block = device.memory().allocate(gpus, device, stream, 4).unwrap();
    take(pointers.shape as usize, old.data).unwrap().end(&inside).unwrap();
    assert_eq!(memory::find(block).unwrap().requested, 4);
    assert!(matches!(unknown_pointer(1), Error::InvalidPointer { .. }));
    runtime::shutdown(&inside, |_| 0).unwrap();
}
