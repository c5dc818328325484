use super::*;
use crate::base::thread;
use crate::driver::sim;
use crate::gpu::gpus::Gpus;
use crate::ops::copy;
use crate::random::generator::Position;
use crate::runtime;
use crate::tensor::Place;

const FLOAT: tensor::Dtype = tensor::Dtype::new(dtype::code::FLOAT, 32);

fn on_machine<R>(options: &str, body: impl FnOnce(&Gpus) -> R) -> R {
    let _lock = sim::test_lock();
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "sim", options).unwrap();
    let result = body(runtime::get(&inside).unwrap());
    runtime::shutdown(&inside, |_| 0).unwrap();
    result
}

fn tensor(data: u64, dtype: tensor::Dtype, shape: &[i64], strides: Option<&[i64]>) -> Tensor {
    Tensor::new(Parts { data, byte_offset: 0, place: Place::Cuda(0), dtype, shape, strides })
        .unwrap()
}

fn run(gpus: &Gpus, tensor: &Tensor, distribution: Distribution) -> Result<()> {
    let fill = Fill { tensor, generator: None, stream: None, operation: "a test" };
    fill.run(gpus, |_, _| Ok(distribution))
}

fn words(gpus: &Gpus, address: u64, count: usize) -> Vec<u32> {
    let device = &gpus.devices[0];
    let stream = device.streams.default();
    let mut words = vec![0u32; count];
    copy::copy(gpus, words.as_mut_ptr() as u64, address, 4 * count as u64, stream).unwrap();
    stream.synchronize(gpus).unwrap();
    words
}

const UNIFORM: Distribution = Distribution::Uniform { low: 0.0, high: 1.0 };

#[test]
fn numbers_and_offsets_are_pytorchs() {
    on_machine("memory=64MiB", |gpus| {
        let device = &gpus.devices[0];
        let stream = device.streams.default();
        let address = device.memory().allocate(gpus, device, stream, 1 << 20).unwrap();
        let eight = tensor(address, FLOAT, &[8], None);
        device.generator().put(Position::start(42));
        run(gpus, &eight, UNIFORM).unwrap();
        let first = [
            0x3f1c_eaf0,
            0x3c24_cdda,
            0x3ecb_fce1,
            0x3d25_1a6b,
            0x3e20_0464,
            0x3ef7_06b6,
            0x3f3c_7ab4,
            0x3ecf_dcde,
        ];
        assert_eq!(words(gpus, address, 8), first);
        run(gpus, &eight, UNIFORM).unwrap();
        let second = [
            0x3f7c_db21,
            0x3e03_fe45,
            0x3f0f_e60f,
            0x3f05_a8df,
            0x3f3e_9616,
            0x3f18_712c,
            0x3f76_f709,
            0x3f65_dde9,
        ];
        assert_eq!(words(gpus, address, 8), second);
        assert_eq!(device.generator().position().offset, 8);
        // A dense tensor is filled in memory order, whatever its strides are.
        let strided = tensor(address, FLOAT, &[2, 4], Some(&[1, 2]));
        device.generator().put(Position::start(42));
        run(gpus, &strided, UNIFORM).unwrap();
        assert_eq!(words(gpus, address, 8), first);
        // A tensor without elements takes nothing.
        run(gpus, &tensor(0, FLOAT, &[3, 0], None), UNIFORM).unwrap();
        assert_eq!(device.generator().position().offset, 4);
        // A refused fill takes nothing.
        assert!(run(gpus, &tensor(address + 2, FLOAT, &[3], None), UNIFORM).is_err());
        assert!(run(gpus, &tensor(address, FLOAT, &[3], Some(&[0])), UNIFORM).is_err());
        assert!(run(gpus, &eight, Distribution::IntegersAll).is_ok());
        assert_eq!(device.generator().position().offset, 8);
        assert!(run(gpus, &tensor(address, FLOAT, &[1 << 18, 2], None), UNIFORM).is_err());
        assert_eq!(device.generator().position().offset, 8);
    });
}

#[test]
fn parts_of_complex_numbers_are_filled() {
    on_machine("memory=64MiB", |gpus| {
        let device = &gpus.devices[0];
        let stream = device.streams.default();
        let address = device.memory().allocate(gpus, device, stream, 256).unwrap();
        device.generator().put(Position::start(42));
        run(gpus, &tensor(address, FLOAT, &[8], None), UNIFORM).unwrap();
        let floats = words(gpus, address, 8);
        let complex = tensor::Dtype::new(dtype::code::COMPLEX, 64);
        device.generator().put(Position::start(42));
        run(gpus, &tensor(address, complex, &[4], None), UNIFORM).unwrap();
        assert_eq!(words(gpus, address, 8), floats);
        device.generator().put(Position::start(42));
        run(gpus, &tensor(address, complex, &[], None), UNIFORM).unwrap();
        assert_eq!(words(gpus, address, 2), floats[..2]);
        let refused = run(gpus, &tensor(address, complex, &[4], None), Distribution::IntegersAll);
        assert!(refused.is_err());
    });
}

#[test]
fn the_increment_depends_on_the_device() {
    // Four thread blocks of 256 threads; each thread takes four numbers at a time.
    on_machine("memory=64MiB,multiprocessors=2,threads_per_multiprocessor=512", |gpus| {
        let device = &gpus.devices[0];
        let stream = device.streams.default();
        let address = device.memory().allocate(gpus, device, stream, 1 << 20).unwrap();
        device.generator().put(Position::start(0));
        for (count, offset) in [(4096, 4), (4097, 12), (1, 16), (8193, 28)] {
            run(gpus, &tensor(address, FLOAT, &[count], None), UNIFORM).unwrap();
            assert_eq!(device.generator().position().offset, offset);
        }
    });
}
