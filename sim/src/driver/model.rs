//! Models of GPUs: what their attributes say.

/// A model. Sizes are in bytes, frequencies in kHz.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// The value of option `gpu`.
    pub(super) key: &'static str,
    /// The name that cuDeviceGetName gives.
    pub(super) name: &'static str,
    /// Major and minor number.
    pub(super) compute_capability: (i32, i32),
    /// Memory in MiB.
    pub(super) memory: usize,
    pub(super) multiprocessors: i32,
    pub(super) threads_per_multiprocessor: i32,
    pub(super) blocks_per_multiprocessor: usize,
    pub(super) shared_per_multiprocessor: usize,
    /// The most that a block can have, which a kernel asks for by an attribute.
    pub(super) shared_per_block: usize,
    /// What the system takes of a block's shared memory.
    pub(super) shared_reserved: usize,
    pub(super) clock: i32,
    pub(super) memory_clock: i32,
    /// Bits of the bus of the memory.
    pub(super) bus: i32,
    pub(super) l2: i32,
    /// The part of the L2 cache that persisting accesses can have.
    pub(super) persisting_l2: i32,
    pub(super) access_window: i32,
    /// Single precision operations in the time of one of double precision.
    pub(super) double_ratio: i32,
    pub(super) copy_engines: i32,
    /// Device and vendor of the PCI card, and of its subsystem.
    pub(super) pci: (u32, u32),
}

const KIB: usize = 1 << 10;
const MIB: i32 = 1 << 20;

/// H100, whose attributes the devices have unless option `gpu` names another model.
pub(super) const H100: Model = Model {
    key: "H100",
    name: "NVIDIA H100 80GB HBM3",
    compute_capability: (9, 0),
    memory: 81_078,
    multiprocessors: 132,
    threads_per_multiprocessor: 2048,
    blocks_per_multiprocessor: 32,
    shared_per_multiprocessor: 228 * KIB,
    shared_per_block: 227 * KIB,
    shared_reserved: KIB,
    clock: 1_980_000,
    memory_clock: 2_619_000,
    bus: 5120,
    l2: 50 * MIB,
    persisting_l2: 32_768_000,
    access_window: 134_217_728,
    double_ratio: 2,
    copy_engines: 3,
    pci: (0x2330_10de, 0x16c1_10de),
};

/// The models: H100 and H200 as cards of the model answer, the others by NVIDIA's documents. Memory
/// is what CUDA reports, which differs a little between drivers.
pub(super) const MODELS: [Model; 6] = [
    H100,
    Model {
        key: "H200",
        name: "NVIDIA H200",
        memory: 143_154,
        memory_clock: 3_201_000,
        bus: 6016,
        l2: 60 * MIB,
        persisting_l2: 39_321_600,
        pci: (0x2335_10de, 0x18bf_10de),
        ..H100
    },
    Model {
        key: "A100",
        name: "NVIDIA A100-SXM4-80GB",
        compute_capability: (8, 0),
        memory: 81_152,
        multiprocessors: 108,
        shared_per_multiprocessor: 164 * KIB,
        shared_per_block: 163 * KIB,
        clock: 1_410_000,
        memory_clock: 1_593_000,
        l2: 40 * MIB,
        persisting_l2: 26_214_400,
        pci: (0x20b2_10de, 0x1463_10de),
        ..H100
    },
    Model {
        key: "L40S",
        name: "NVIDIA L40S",
        compute_capability: (8, 9),
        memory: 45_458,
        multiprocessors: 142,
        threads_per_multiprocessor: 1536,
        blocks_per_multiprocessor: 24,
        shared_per_multiprocessor: 100 * KIB,
        shared_per_block: 99 * KIB,
        clock: 2_520_000,
        memory_clock: 9_001_000,
        bus: 384,
        l2: 96 * MIB,
        persisting_l2: 66 * MIB,
        double_ratio: 64,
        copy_engines: 2,
        pci: (0x26b9_10de, 0x1851_10de),
        ..H100
    },
    Model {
        key: "T4",
        name: "Tesla T4",
        compute_capability: (7, 5),
        memory: 15_094,
        multiprocessors: 40,
        threads_per_multiprocessor: 1024,
        blocks_per_multiprocessor: 16,
        shared_per_multiprocessor: 64 * KIB,
        shared_per_block: 64 * KIB,
        shared_reserved: 0,
        clock: 1_590_000,
        memory_clock: 5_001_000,
        bus: 256,
        l2: 4 * MIB,
        persisting_l2: 0,
        access_window: 0,
        double_ratio: 32,
        pci: (0x1eb8_10de, 0x12a2_10de),
        ..H100
    },
    Model {
        key: "B200",
        name: "NVIDIA B200",
        compute_capability: (10, 0),
        memory: 182_630,
        multiprocessors: 148,
        clock: 1_965_000,
        memory_clock: 3_996_000,
        bus: 7680,
        l2: 132_644_864,
        persisting_l2: 82_903_040,
        pci: (0x2901_10de, 0x10de),
        ..H100
    },
];

/// The model of a key, in either case.
pub(super) fn find(key: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.key.eq_ignore_ascii_case(key))
}
