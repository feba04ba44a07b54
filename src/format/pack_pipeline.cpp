// Chunks made ahead: a few threads read source bytes and pack them, the caller takes them in order.
#include "format/pack_pipeline.h"

#include <algorithm>
#include <new>

namespace millrace::format {
namespace {

// Memory is threads + 1 chunks with their source bytes, so there are no more than keep a disk busy.
unsigned thread_count() { return std::clamp(std::thread::hardware_concurrency(), 2u, 4u); }

std::string kind_of(const ModelSource& source, const WeightView& view) {
  std::string text = fmt::format("{}/{}x{}/{}{}/{}", layout_name(view.layout), view.layout.rows,
                                 view.layout.cols, view.vector, view.transposed, view.row_step);
  for (const uint32_t tensor : tensors_of(view)) {
    if (tensor != kNoTensor) text += fmt::format("/{}", info(source.tensors[tensor].type).name);
  }
  return text;
}

// Bytes of tensor i that the view stands for.
Expected<uint64_t> covered_bytes(const ModelSource& source, const WeightView& view, size_t i) {
  if (only_read(view, i)) return uint64_t{0};
  const uint64_t values = uint64_t{view.layout.rows} * view.layout.cols;
  if (view.vector || view.transposed) {
    return values * info(source.tensors[tensors_of(view)[i]].type).block_bytes;
  }
  WeightView row = view;
  row.layout.rows = 1;
  MILLRACE_ASSIGN(const auto one, view_extents(source, row));
  return one[i].bytes * view.layout.rows;
}

}  // namespace

PackPipeline::PackPipeline(const ModelSource& source, std::span<const InFile> files,
                           std::span<const PackChunk> chunks, uint64_t first)
    : source_(source),
      files_(files),
      chunks_(chunks),
      slots_(thread_count() + 1),
      claimed_(first),
      taken_(first),
      reusable_(first) {
  for (unsigned i = 0; i < thread_count(); ++i) threads_.emplace_back([this] { work(); });
}

PackPipeline::~PackPipeline() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Expected<PackPipeline::Made> PackPipeline::next() {
  std::unique_lock lock(mutex_);
  reusable_ = taken_;
  changed_.notify_all();
  Slot& slot = slot_of(taken_);
  changed_.wait(lock, [&] { return slot.ready; });
  slot.ready = false;
  if (!slot.status) return tl::make_unexpected(slot.status.error());
  ++taken_;
  return slot.made;
}

void PackPipeline::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stop_ || claimed_ == chunks_.size() || claimed_ < reusable_ + slots_.size();
    });
    if (stop_ || claimed_ == chunks_.size()) return;
    const PackChunk& chunk = chunks_[claimed_];
    Slot& slot = slot_of(claimed_);
    ++claimed_;
    lock.unlock();
    Status status;
    try {
      status = make(chunk, slot);
    } catch (const std::bad_alloc&) {
      status = fail(Code::kNoMemory, "packing: no memory for {} bytes", chunk.bytes);
    }
    lock.lock();
    slot.status = std::move(status);
    slot.ready = true;
    changed_.notify_all();
  }
}

Status PackPipeline::make(const PackChunk& chunk, Slot& slot) {
  Made& made = slot.made;
  made = {};
  made.chunk = &chunk;
  if (chunk.is_view) {
    MILLRACE_ASSIGN(made.extents, view_extents(source_, chunk.view));
  } else {
    made.extents[0] = chunk.raw;
  }
  for (size_t i = 0; i < 3; ++i) {
    const Extent& extent = made.extents[i];
    if (extent.bytes == 0) continue;
    slot.source[i].grow(extent.bytes);
    const auto to = slot.source[i].first(extent.bytes);
    MILLRACE_TRY(files_[extent.file].read(extent.offset, to));
    made.source[i] = to;
  }
  if (!chunk.is_view) {
    made.bytes = made.source[0];
    return {};
  }
  slot.packed.grow(chunk.bytes);
  const auto to = slot.packed.first(chunk.bytes);
  pack_view(source_, chunk.view, made.source, to);
  made.bytes = to;
  return prove(chunk, slot);
}

// The first view of each kind is unpacked again and compared: packing must lose nothing. Twice,
// onto different old contents, so that bytes which the view does not cover are told from those it
// does.
Status PackPipeline::prove(const PackChunk& chunk, const Slot& slot) {
  {
    const std::lock_guard lock(mutex_);
    if (!proven_.insert(kind_of(source_, chunk.view)).second) return {};
  }
  std::array<std::vector<std::byte>, 3> first, second;
  std::array<std::span<std::byte>, 3> first_spans, second_spans;
  for (size_t i = 0; i < 3; ++i) {
    first[i].assign(slot.made.extents[i].bytes, std::byte{0xa5});
    second[i].assign(slot.made.extents[i].bytes, std::byte{0x5a});
    first_spans[i] = first[i];
    second_spans[i] = second[i];
  }
  unpack_view(source_, chunk.view, slot.made.bytes, first_spans);
  unpack_view(source_, chunk.view, slot.made.bytes, second_spans);
  for (size_t i = 0; i < 3; ++i) {
    if (first[i].empty()) continue;
    const SourceTensor& tensor = source_.tensors[tensors_of(chunk.view)[i]];
    const auto lost = [&](uint64_t at) {
      return fail(Code::kInternal, "tensor '{}' does not come back from layout {} (byte {})",
                  tensor.name, layout_name(chunk.view.layout), at);
    };
    uint64_t untouched = 0;
    for (uint64_t at = 0; at < first[i].size(); ++at) {
      const std::byte was = slot.made.source[i][at];
      if (first[i][at] == std::byte{0xa5} && second[i][at] == std::byte{0x5a}) {
        ++untouched;
      } else if (first[i][at] != was || second[i][at] != was) {
        return lost(at);
      }
    }
    MILLRACE_ASSIGN(const uint64_t covered, covered_bytes(source_, chunk.view, i));
    if (first[i].size() - untouched != covered) return lost(first[i].size());
  }
  return {};
}

}  // namespace millrace::format
