//! Checks beyond arithmetic: packing and its errors, sizes, copies to and from the host, and the order of steps.

use super::bounds::{hold, same_bits};
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use super::weights::{Weights, supported};
use crate::{
    AnyBackend, BufferRole, DType, ExpertParts, HeadShape, KernelError, KvGroups, KvLayout, KvPlace, KvSpec,
    KvType, MatrixShape, MatrixSource, StateRule, StateShape, StepLimits,
};

/// Checks that `pack` refuses what it cannot compute and names the tensor: bytes that do not fit the shape, rows that
/// are not whole blocks, parts of unequal width, unsupported types.
///
/// # Panics
/// If a bad matrix is accepted, or refused for another reason.
pub fn check_pack(make: &dyn Fn() -> AnyBackend) {
    let backend = make();
    let mut random = Random::new(60);
    let refusal = |parts: &[MatrixSource<'_>]| match backend.pack(parts) {
        Ok(_) => panic!("pack took {parts:?}"),
        Err(error) => {
            assert!(error.to_string().contains("the_bad_one"), "the error does not name the tensor: {error}");
            error
        }
    };
    for dtype in supported(&backend) {
        let cols = 2 * dtype.block_weights().max(32);
        let good = Weights::random(dtype, 4, cols, &mut random);
        let bad = MatrixSource { name: "the_bad_one", ..good.source() };
        for bytes in [&good.bytes[1..], &good.bytes[..good.bytes.len() - dtype.block_bytes()], &[]] {
            let error = refusal(&[good.source(), MatrixSource { bytes, ..bad }]);
            assert!(matches!(error, KernelError::WrongSize { .. }), "{dtype}: {error}");
        }
        let wider = Weights::random(dtype, 2, 2 * cols, &mut random);
        let error = refusal(&[good.source(), MatrixSource { name: "the_bad_one", ..wider.source() }]);
        assert!(matches!(error, KernelError::BadShape { .. }), "{dtype}: {error}");
        if dtype.block_weights() > 1 {
            let shape = MatrixShape { cols: cols + 1, ..good.shape };
            let error = refusal(&[MatrixSource { shape, ..bad }]);
            assert!(matches!(error, KernelError::BadShape { .. }), "{dtype}: {error}");
        }
    }
    for &dtype in DType::ALL.iter().filter(|&&dtype| !backend.supports(dtype)) {
        let bytes = vec![0; dtype.block_bytes()];
        let shape = MatrixShape { rows: 1, cols: dtype.block_weights(), dtype };
        let error = refusal(&[MatrixSource { name: "the_bad_one", shape, bytes: &bytes }]);
        assert!(matches!(error, KernelError::UnsupportedType { .. }), "{dtype}: {error}");
    }
}

/// Checks that reported sizes are at least the content's size and not far more, so that they are fit for a memory
/// budget. Their exactness cannot be seen from outside; a backend asserts it where it allocates.
///
/// # Panics
/// If a size is impossible.
pub fn check_sizes(make: &dyn Fn() -> AnyBackend) {
    let backend = make();
    check_matrix_sizes(&backend);
    check_buffer_sizes(&backend);
    check_cache_sizes(&backend);
    check_layered_caches(&backend);
    check_scratch_sizes(&backend);
}

/// Checks the sizes of matrices and experts.
fn check_matrix_sizes(backend: &AnyBackend) {
    for dtype in supported(backend) {
        for (rows, cols) in [(1024, 1024), (1000, 2048), (1, 256)] {
            let shape = MatrixShape { rows, cols, dtype };
            let found = backend.matrix_bytes(&[shape]);
            let least = dtype
                .bytes_of(rows * cols)
                .unwrap_or_else(|| panic!("{dtype}: {cols} columns are whole blocks"));
            // At most f32 weights with some scales, with rows and columns padded to 64.
            let most = rows.next_multiple_of(64) * cols.next_multiple_of(64) * 5;
            assert!(
                (least..=most).contains(&found),
                "matrix_bytes of {shape:?} is {found}, not in {least}..={most}"
            );
            let expert = ExpertParts { gate_up: vec![shape], down: vec![shape] };
            let experts = backend.experts_bytes(&[expert.clone(), expert]);
            assert!(
                (4 * least..=4 * most).contains(&experts),
                "experts_bytes of four of {shape:?} is {experts}"
            );
            let both = backend.matrix_bytes(&[shape, shape]);
            assert!((2 * least..=2 * most).contains(&both), "matrix_bytes of two of {shape:?} is {both}");
        }
    }
}

/// Checks the sizes of buffers and vectors.
fn check_buffer_sizes(backend: &AnyBackend) {
    for (rows, cols) in [(1, 1), (512, 1024), (7, 4096)] {
        for (role, least) in [(BufferRole::Residual, 4), (BufferRole::Operand, 1)] {
            let found = backend.buffer_bytes(role, rows, cols);
            // Rows and columns padded to 64.
            let most = 4 * rows.next_multiple_of(64) * cols.next_multiple_of(64);
            assert!(
                (least * rows * cols..=most).contains(&found),
                "buffer_bytes of {role:?} [{rows}, {cols}] is {found}"
            );
        }
        let found = backend.vector_bytes(cols);
        assert!(
            (4 * cols..=4 * cols.next_multiple_of(64)).contains(&found),
            "vector_bytes of {cols} is {found}"
        );
    }
}

/// Shape of the heads in the checks of sizes.
const SIZED_HEADS: HeadShape = HeadShape { heads: 8, kv_heads: 2, head_dim: 64 };

/// Layout of heads without a window.
fn heads_of(kv_heads: usize, head_dim: usize) -> KvLayout {
    KvLayout::Heads { kv_heads, head_dim, window: None }
}

/// Checks the sizes of KV caches with equal layers.
fn check_cache_sizes(backend: &AnyBackend) {
    for (&kv_type, layers, blocks) in
        KvType::ALL.iter().flat_map(|kv_type| [(kv_type, 1, 64), (kv_type, 28, 100), (kv_type, 2, 1000)])
    {
        let HeadShape { kv_heads, head_dim, .. } = SIZED_HEADS;
        let layout = heads_of(kv_heads, head_dim);
        let found =
            backend.kv_bytes(&KvSpec { layers: vec![layout; layers], blocks, kv_type, ..KvSpec::default() });
        let elements = 2 * layers * blocks * 16 * kv_heads * head_dim;
        let least = match kv_type {
            KvType::F16 => 2 * elements,
            KvType::Fp8 => elements,
            KvType::Q8_0 => elements + elements / 32 * 2,
        };
        // At most f32, if a device computes with that.
        assert!(
            (least..=8 * elements).contains(&found),
            "kv_bytes of {layers} layers, {blocks} blocks of {kv_type} is {found}"
        );
    }
    let odd = KvSpec { layers: vec![heads_of(1, 80)], blocks: 1, kv_type: KvType::Q8_0, ..KvSpec::default() };
    match backend.kv(&odd) {
        Err(KernelError::BadKvType { kv_type: KvType::Q8_0, head_dim: 80 }) => {}
        Err(error) => panic!("a cache of Q8_0 for heads of 80 was refused for another reason: {error}"),
        Ok(_) => panic!("a cache of Q8_0 for heads of 80, which are not whole groups of 32, was made"),
    }
}

/// Checks the sizes of KV caches whose layers differ, and refusals of layouts.
fn check_layered_caches(backend: &AnyBackend) {
    // Layers that differ take as much as each takes alone.
    let (few, many) = (heads_of(1, 64), heads_of(4, 256));
    let of_layers =
        |layers: Vec<KvLayout>| KvSpec { layers, blocks: 100, kv_type: KvType::F16, ..KvSpec::default() };
    let bytes = |layers: &[KvLayout]| backend.kv_bytes(&of_layers(layers.to_vec()));
    assert_eq!(
        bytes(&[few, many, few]),
        2 * bytes(&[few]) + bytes(&[many]),
        "kv_bytes of layers that differ are not those of each"
    );
    // Layers in one plane take as much as the largest of them alone.
    let place = |group, plane| KvPlace { group, plane };
    let places = vec![place(0, 0), place(0, 1), place(1, 0)];
    let groups = KvGroups { windows: vec![None, Some(64)], places };
    assert_eq!(
        backend.kv_bytes(&KvSpec { groups, ..of_layers(vec![few, many, many]) }),
        2 * bytes(&[many]),
        "kv_bytes of two planes with large layers, one of which has a small one too"
    );
    // A layout that a device cannot hold is refused by name, and has size 0.
    let latent = KvLayout::Latent { rank: 512, rope_dim: 64 };
    match backend.kv(&of_layers(vec![few, latent])) {
        Ok(_) => assert!(bytes(&[latent]) >= 100 * 16 * 2 * 576, "a latent takes {} bytes", bytes(&[latent])),
        Err(KernelError::UnsupportedKvLayout { layer: 1, layout, .. }) if layout == latent => {}
        Err(error) => panic!("a cache of a latent layer was refused for another reason: {error}"),
    }
    // States take no part of a block.
    let shape = StateShape {
        rule: StateRule::Ssd,
        key_heads: 2,
        value_heads: 4,
        key_dim: 32,
        value_dim: 16,
        taps: 4,
        tiled: false,
    };
    let layers = vec![few, KvLayout::State(shape)];
    let of_states = |states| KvSpec { states, ..of_layers(layers.clone()) };
    match backend.kv(&of_states(5)) {
        Ok(_) => {
            let states = backend.kv_bytes(&of_states(5)) - bytes(&[few]);
            assert!(states >= 5 * 4 * shape.elements(), "states take {states} bytes, five of them");
            assert_eq!(bytes(&layers), bytes(&[few]), "no states take something");
        }
        Err(KernelError::UnsupportedKvLayout { layer: 1, layout: KvLayout::State(_), .. }) => {}
        Err(error) => panic!("a cache of states was refused for another reason: {error}"),
    }
}

/// Checks the sizes of scratch memory.
fn check_scratch_sizes(backend: &AnyBackend) {
    let limits = |rows, context| StepLimits {
        rows,
        sequences: 8,
        logit_rows: 8,
        context,
        width: 512,
        vocab: 1000,
        heads: SIZED_HEADS,
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    };
    let with_experts = |experts, experts_used| {
        backend.scratch_bytes(&StepLimits { experts, experts_used, ..limits(64, 512) })
    };
    assert!(
        with_experts(0, 0) <= with_experts(8, 2) && with_experts(8, 2) <= with_experts(64, 8),
        "scratch shrinks as experts grow in number"
    );
    let size = |rows, context| backend.scratch_bytes(&limits(rows, context));
    assert_eq!(size(64, 512), size(64, 512), "scratch_bytes changes its mind");
    assert!(
        size(64, 512) <= size(128, 512) && size(64, 512) <= size(64, 4096),
        "scratch shrinks as limits grow"
    );
}

/// Checks buffers: new ones are zero in either role; written rows are read back bit for bit, wherever they start, and
/// change no others; the sum over one device is the identity.
///
/// # Panics
/// If a bit differs.
pub fn check_transfers(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), 16, 128, 1);
    let mut random = Random::new(61);
    let roles = [BufferRole::Residual, BufferRole::Operand];
    for ((rows, cols), role) in
        [(1, 1), (7, 33), (16, 64), (13, 100)].into_iter().flat_map(|shape| roles.map(|role| (shape, role)))
    {
        let mut buffer = ok("buffer", rig.backend.buffer(role, rows, cols));
        let mut expected = vec![0.0; rows * cols];
        let read = |rig: &Rig, buffer: &crate::Buffer, first: usize, count: usize| {
            let mut out = vec![f32::NAN; count * cols];
            ok("read_rows", rig.backend.read_rows(buffer, first, &mut out));
            out
        };
        same_bits("a new buffer", &read(&rig, &buffer, 0, rows), &expected, cols);
        for _ in 0..6 {
            let first = random.below(rows);
            let count = 1 + random.below(rows - first);
            let mut values = random.normals(count * cols);
            if role == BufferRole::Operand {
                hold(rig.rounding, &mut values);
            }
            ok("write_rows", rig.backend.write_rows(&mut buffer, first, &values));
            expected[first * cols..][..values.len()].copy_from_slice(&values);
            same_bits("rows read back", &read(&rig, &buffer, 0, rows), &expected, cols);
            same_bits("some rows read back", &read(&rig, &buffer, first, count), &values, cols);
        }
        rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.all_reduce(&mut buffer));
        same_bits("all_reduce on one device", &read(&rig, &buffer, 0, rows), &expected, cols);
    }
}

/// Checks that a step may be ended twice or without having begun, and that a step cut short leaves nothing behind: the
/// next gives the same bits.
///
/// # Panics
/// If `end` fails or a bit differs.
pub fn check_steps(make: &dyn Fn() -> AnyBackend) {
    let cols = 64;
    let mut rig = Rig::for_rows(make(), 8, cols, 1);
    ok("end before any step", rig.backend.end());
    assert!(!rig.backend.facts().device.is_empty(), "a device has a name");
    let mut random = Random::new(62);
    let x = random.normals(5 * cols);
    let weight = rig.vector(&random.normals(cols));
    let mut run = |rows: usize| {
        let buffer = rig.upload(&x[..rows * cols], cols);
        let mut out = rig.blank(rows, cols);
        rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.rms_norm(&buffer, &weight, 1e-6, &mut out));
        ok("end again", rig.backend.end());
        let found = rig.download("rms_norm", &out, rows, cols);
        ok("begin", rig.backend.begin(&rows_batch(&[0; 8])));
        ok("end of a step without ops", rig.backend.end());
        found
    };
    let five = run(5);
    same_bits("a smaller step after a larger", &run(2), &five[..2 * cols], cols);
    same_bits("the same step again", &run(5), &five, cols);
}
