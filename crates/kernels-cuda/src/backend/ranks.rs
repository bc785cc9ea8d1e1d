//! Tensor parallelism on the device. Devices with peer access use barrier kernels in the step's plan, which also copy
//! the other devices' columns, so plans are whole steps. Other devices wait for events before copies.

use std::ops::Range;

use bytemuck::{Zeroable, pod_read_unaligned};
use hanzo_engine_ops::Peers;

use super::*;
use crate::device::failed;
use crate::peers::{Columns, DeviceRows, PeerDevice};
use crate::plan::Launch;

/// Bytes of a rank's barrier state: a counter for each rank, then the rank's own turn, the number of its finished
/// blocks, and whether it gave up waiting.
pub(super) const MEETINGS_BYTES: usize = 8 * RANKS_MAX + 8 + 4 + 4;
/// Time that a rank waits for others; by then the host has launched on all ranks or never will. `TRIAL_PATIENCE_MS`
/// applies to the trial, in which nothing else is waited for.
const PATIENCE_MS: u32 = 60_000;
const TRIAL_PATIENCE_MS: u32 = 2_000;
/// Largest number of blocks that copy columns. Since each waits, all of them must be resident at once; the smallest
/// GPU has room for so many.
const BLOCKS_MAX: u32 = 128;

/// Devices with peer access, from the view of one of them.
pub(crate) struct PeerGroup<D: Device> {
    rank: usize,
    meetings: Vec<Arc<Memory<D>>>, // barrier memory of each device
}

impl<D: Device> PeerGroup<D> {
    /// Barrier without anything to copy.
    fn params(&self) -> MeetParams {
        let own = self.meetings[self.rank].address();
        let mut flags = [Address::NONE; RANKS_MAX];
        flags.iter_mut().zip(&self.meetings).for_each(|(flag, memory)| *flag = memory.address());
        MeetParams {
            flags,
            turn: own.offset(8 * RANKS_MAX),
            arrived: own.offset(8 * RANKS_MAX + 8),
            late: own.offset(8 * RANKS_MAX + 8 + 4),
            rank: self.rank as u32,
            ranks: self.meetings.len() as u32,
            patience_ms: PATIENCE_MS,
            ..Zeroable::zeroed()
        }
    }
}

/// Grid for copying the columns of so many rows.
fn grid(rows: u32, p: &MeetParams) -> Grid {
    let each = if p.by_fours == 0 { 1 } else { 4 };
    let numbers = u64::from(rows) * u64::from(p.count * p.width / each);
    assert!(numbers < 1 << 31, "{rows} rows of {} columns are more than a kernel counts", p.count * p.width);
    let blocks = (numbers as u32).div_ceil(THREADS).clamp(1, BLOCKS_MAX);
    Grid { blocks: [blocks, 1, 1], threads: THREADS, shared_bytes: 0 }
}

/// Adds this copy to the last launch, if that is a barrier without copies or with copies that these follow. Returns
/// whether it did.
fn brought_too<D: Device>(ops: &mut Ops<'_, D>, own: &MeetParams, memory: [&Arc<Memory<D>>; 2]) -> bool {
    let Some(last) = ops.last().filter(|last| last.kernel == Kernel::Meet) else { return false };
    let mut params: MeetParams = pod_read_unaligned(last.params);
    if params.count == 0 {
        params = MeetParams { ranks: params.ranks, ..*own };
    } else {
        let width_bytes = 4 * (params.count * params.width) as usize;
        let is_behind = own.out == params.out.offset(width_bytes)
            && (own.width, own.source_stride, own.out_stride, own.by_fours)
                == (params.width, params.source_stride, params.out_stride, params.by_fours);
        if !is_behind || params.count as usize == RANKS_MAX {
            return false;
        }
        params.sources[params.count as usize] = own.sources[0];
        params.count += 1;
    }
    let grid = grid(ops.bucket.rows, &params);
    ops.replace_last(Kernel::Meet, grid, &params, &memory);
    true
}

/// Whether ranks at their first barrier see each other's counters and data. A machine may report peer access that does
/// not work (PCIe behind an IOMMU).
fn have_met<D: Device>(ranks: &[PeerGroup<D>]) -> Result<bool, KernelError> {
    const WIDTH: usize = 4;
    // Number of rows, this rank's data, and the data it reads.
    let (own_at, read_at) = (16, 16 + 4 * WIDTH);
    let given = |rank: usize| std::array::from_fn::<f32, WIDTH, _>(|at| (1 + rank * WIDTH + at) as f32);
    let rooms = ranks.iter().enumerate().map(|(rank, known)| {
        let device = known.meetings[rank].device();
        let room = Memory::zeroed(device, read_at + 4 * WIDTH * ranks.len(), "a trial")?;
        room.write(0, bytemuck::bytes_of(&[1u32, 1, 0, 0]))?;
        room.write(own_at, bytemuck::bytes_of(&given(rank)))?;
        device.wait().map_err(failed(device, 0, "a trial"))?;
        Ok(room)
    });
    let rooms: Vec<Arc<Memory<D>>> = rooms.collect::<Result<_, KernelError>>()?;
    for (known, room) in ranks.iter().zip(&rooms) {
        let mut sources = [Address::NONE; RANKS_MAX];
        sources.iter_mut().zip(&rooms).for_each(|(source, room)| *source = room.address().offset(own_at));
        let params = MeetParams {
            batch: BatchParams { counts: room.address(), ..Zeroable::zeroed() },
            sources,
            out: room.address().offset(read_at),
            count: ranks.len() as u32,
            width: WIDTH as u32,
            source_stride: WIDTH as u32,
            out_stride: (WIDTH * ranks.len()) as u32,
            by_fours: 1,
            patience_ms: TRIAL_PATIENCE_MS,
            is_trial: 1,
            ..known.params()
        };
        let launch =
            Launch { kernel: Kernel::Meet, grid: grid(1, &params), params: bytemuck::bytes_of(&params) };
        // SAFETY: its memory is held until all have been waited for, below, and as large as the parameters say.
        let launched = unsafe { room.device().launch(&launch) };
        launched.map_err(failed(room.device(), 0, "a trial"))?;
    }
    let mut have = true;
    for (rank, (known, room)) in ranks.iter().zip(&rooms).enumerate() {
        let (mut read, mut late) = (vec![0.0f32; WIDTH * ranks.len()], [0u32]);
        room.read(read_at, bytemuck::cast_slice_mut(&mut read))?;
        known.meetings[rank].read(MEETINGS_BYTES - 4, bytemuck::cast_slice_mut(&mut late))?;
        have &= late == [0] && read.chunks(WIDTH).enumerate().all(|(of, read)| read == given(of));
    }
    Ok(have)
}

impl<D: PeerDevice> Peers for CudaBackend<D> {
    type Mark = D::Mark;

    fn mark(&mut self) -> Result<D::Mark, KernelError> {
        self.steps.start()?;
        self.device.mark().map_err(failed(&self.device, 0, "a mark"))
    }

    fn follow(&mut self, mark: &D::Mark) -> Result<(), KernelError> {
        self.steps.start()?;
        self.device.follow(mark).map_err(failed(&self.device, 0, "a mark"))
    }

    fn acquaint(ranks: &mut [&mut Self]) -> Result<bool, KernelError> {
        let mut all = ranks.len() <= RANKS_MAX;
        for (at, rank) in ranks.iter().enumerate() {
            // Zeros that are still to be written would overwrite the counters of other ranks.
            rank.device.wait().map_err(failed(&rank.device, 0, "a way to another device"))?;
            for (_, other) in ranks.iter().enumerate().filter(|&(other, _)| other != at) {
                let found = rank.device.reaches(&other.device);
                all &= found.map_err(failed(&rank.device, 0, "a way to another device"))?;
            }
        }
        let meetings: Vec<_> = ranks.iter().map(|rank| rank.scratch().meetings.clone()).collect();
        let known = (0..ranks.len()).map(|rank| PeerGroup { rank, meetings: meetings.clone() });
        let known: Vec<_> = known.collect();
        all = all && have_met(&known)?;
        for (rank, known) in ranks.iter_mut().zip(known) {
            match all {
                true => {
                    rank.peer_group = Some(known);
                    rank.steps.record_at_once();
                }
                // Between two events there are few launches, and a model has more such plans than layers.
                false => rank.steps.record_no_more(),
            }
        }
        Ok(all)
    }

    /// A driver queues some hundreds of launches and then blocks the host until some are done. Launches after a
    /// barrier finish only when all ranks have reached it. So plans that are not started as one graph are started from
    /// barrier to barrier, on all ranks in turn.
    fn meet(&mut self) {
        if !self.steps.is_recorded()
            && let Err(error) = self.steps.start()
        {
            self.failure.get_or_insert(error);
        }
        let params = self.peer_group.as_ref().expect("devices that meet are acquainted").params();
        let mut ops = self.ops();
        let params = MeetParams { batch: ops.batch, ..params };
        ops.push(Kernel::Meet, grid(ops.bucket.rows, &params), &params, &[]);
    }

    fn start(&self) -> Result<(), KernelError> {
        self.steps.start()
    }

    fn take_columns(
        &mut self,
        x: &CudaBuffer<D>,
        columns: Range<usize>,
        out: &mut CudaBuffer<D>,
        first: usize,
    ) -> Result<(), KernelError> {
        let ((from, x_rows, x_cols), (to, out_rows, out_cols)) = (x.extent(), out.extent());
        let rows = self.steps.rows();
        assert!(
            rows <= x_rows && rows <= out_rows,
            "buffers of {x_rows} and {out_rows} rows, the batch {rows}"
        );
        assert!(columns.end <= x_cols && first + columns.len() <= out_cols, "columns that are not there");
        let (source, target) = (from.address().offset(4 * columns.start), to.address().offset(4 * first));
        if let Some(known) = self.peer_group.as_ref().map(PeerGroup::params) {
            let fuses = self.fuses;
            let mut ops = self.ops();
            let mut sources = [Address::NONE; RANKS_MAX];
            sources[0] = source;
            let by_fours =
                [columns.start, columns.len(), first, x_cols, out_cols].iter().all(|of| of % 4 == 0);
            let own = MeetParams {
                batch: ops.batch,
                sources,
                out: target,
                ranks: 0,
                count: 1,
                width: columns.len() as u32,
                source_stride: x_cols as u32,
                out_stride: out_cols as u32,
                by_fours: by_fours.into(),
                ..known
            };
            if !(fuses && brought_too(&mut ops, &own, [from, to])) {
                ops.push(Kernel::Meet, grid(ops.bucket.rows, &own), &own, &[from, to]);
            }
            return Ok(());
        }
        self.steps.start()?;
        let copied = Columns {
            from: DeviceRows { address: source, pitch: 4 * x_cols },
            to: DeviceRows { address: target, pitch: 4 * out_cols },
            bytes: 4 * columns.len(),
            rows,
        };
        // SAFETY: within both, as the lines above assert; the step holds them, and the contract has the rows that are
        // read stay.
        let done = unsafe { self.device.copy_columns(from.device(), &copied) };
        done.map_err(failed(&self.device, copied.bytes * rows, "rows of another device"))?;
        self.steps.hold([from, to]);
        Ok(())
    }
}
