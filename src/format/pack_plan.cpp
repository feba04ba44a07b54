// What a pack will write, decided before the first byte.
#include "format/pack_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace millrace::format {
namespace {

Status check_piece(const Piece& piece) {
  if (piece.bytes == 0 || piece.bytes % kPackAlign != 0) {
    return fail(Code::kInternal, "piece '{}': {} bytes, no multiple of {}", piece.name, piece.bytes,
                kPackAlign);
  }
  return {};
}

std::string tensor_name(const ModelSource& source, uint32_t index) {
  return index == kNoTensor ? std::string() : source.tensors[index].name;
}

void add_pieces(const PackJob& job, const PackTuning& tuning, Manifest& manifest) {
  manifest.table = *job.table;
  for (Piece& piece : manifest.table.pieces) {
    auto& files = manifest.weights_bytes;
    const bool full = !files.empty() && files.back() + piece.bytes > tuning.file_bytes;
    if (files.empty() || full) files.push_back(0);
    piece.file = static_cast<uint32_t>(files.size() - 1);
    piece.offset = files.back();
    files.back() += piece.bytes;
    piece.hash[0] = piece.hash[1] = 0;
    auto& names = manifest.names.emplace_back();
    for (const PieceTensor& tensor : piece.tensors) {
      names.push_back({tensor_name(*job.source, tensor.view.weight),
                       tensor_name(*job.source, tensor.view.scales),
                       tensor_name(*job.source, tensor.view.biases)});
    }
  }
}

void add_range_chunks(PackPlan& plan, uint32_t item, const SourceRange& range, uint64_t size) {
  for (uint64_t done = 0; done < range.bytes;) {
    const uint64_t part = std::min(size, range.bytes - done);
    PackChunk chunk;
    chunk.item = item;
    chunk.offset = done;
    chunk.bytes = part;
    chunk.raw = {range.file, range.offset + done, part};
    done += part;
    chunk.last = done == range.bytes;
    plan.chunks.push_back(chunk);
  }
}

void add_piece_chunks(PackPlan& plan, uint32_t item, const Piece& piece, uint64_t size) {
  std::vector<const PieceTensor*> sorted;
  for (const PieceTensor& tensor : piece.tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, &PieceTensor::offset);
  for (const PieceTensor* tensor : sorted) {
    uint64_t offset = tensor->offset;
    for (const WeightView& view : cut_view(tensor->view, size)) {
      PackChunk chunk;
      chunk.item = item;
      chunk.is_view = true;
      chunk.offset = offset;
      chunk.bytes = view_bytes(view);
      chunk.view = view;
      offset += chunk.bytes;
      plan.chunks.push_back(chunk);
    }
  }
  // A piece of padding alone still needs a chunk that ends it.
  if (sorted.empty()) {
    PackChunk chunk;
    chunk.item = item;
    plan.chunks.push_back(chunk);
  }
  plan.chunks.back().last = true;
}

Hash128 table_id(const PackPlan& plan) {
  Hasher hasher;
  hasher.field(static_cast<uint64_t>(kPackVersion));
  hasher.field(plan.manifest.architecture);
  for (const PackItem& item : plan.items) {
    for (const uint64_t value : {uint64_t{item.out}, item.offset, item.bytes}) hasher.field(value);
  }
  for (const ManifestRange& range : plan.manifest.ranges) {
    hasher.field(range.range.file);
    hasher.field(range.range.offset);
    hasher.field(range.range.bytes);
  }
  for (const Piece& piece : plan.manifest.table.pieces) {
    hasher.field(piece.name);
    for (const PieceTensor& tensor : piece.tensors) {
      const WeightView& view = tensor.view;
      hasher.field(name(tensor.role));
      hasher.field(layout_name(view.layout));
      for (const uint64_t value :
           {tensor.offset, tensor.bytes, uint64_t{view.layout.rows}, uint64_t{view.layout.cols},
            uint64_t{view.vector}, uint64_t{view.transposed}, uint64_t{view.weight},
            uint64_t{view.scales}, uint64_t{view.biases}, view.index, uint64_t{view.row_begin},
            uint64_t{view.row_step}, uint64_t{view.scale_rows}, uint64_t{view.scale_cols}}) {
        hasher.field(value);
      }
    }
  }
  return hasher.digest();
}

}  // namespace

std::string out_name(uint32_t out) {
  return out == 0 ? std::string(kSourceBinName) : weights_name(out - 1);
}

std::string PackPlan::item_name(uint32_t item) const {
  const size_t ranges = manifest.ranges.size();
  if (item >= ranges) return manifest.table.pieces[item - ranges].name;
  const SourceRange& range = manifest.ranges[item].range;
  return fmt::format("{} at {}", manifest.files[range.file].name, range.offset);
}

std::vector<WeightView> cut_view(const WeightView& view, uint64_t chunk_bytes) {
  const uint64_t tile = tile_bytes(view.layout);
  const uint64_t rows =
      std::max<uint64_t>(chunk_bytes / std::max<uint64_t>(tile, 1), 1) * kTileRows;
  // Rows of a transposed source lie all over it: parts would each read the whole matrix.
  if (view.vector || view.transposed || view.layout.rows <= rows) return {view};
  std::vector<WeightView> parts;
  for (uint64_t done = 0; done < view.layout.rows; done += rows) {
    WeightView part = view;
    part.layout.rows = static_cast<uint32_t>(std::min<uint64_t>(rows, view.layout.rows - done));
    part.row_begin = static_cast<uint32_t>(view.row_begin + done * view.row_step);
    parts.push_back(part);
  }
  return parts;
}

Expected<PackPlan> make_pack_plan(const PackJob& job, const PackTuning& tuning) {
  if (job.source == nullptr || job.table == nullptr || job.table->pieces.empty()) {
    return fail(Code::kInternal, "pack: no source or no pieces");
  }
  const ModelSource& source = *job.source;
  PackPlan plan;
  Manifest& manifest = plan.manifest;
  manifest.architecture = job.architecture;
  manifest.kind = source.kind;
  manifest.source_name = source.path.substr(source.path.rfind('/') + 1);
  for (const SourceFile& file : source.files) {
    manifest.files.push_back({file.name, file.size, file.data_begin, {}});
  }
  for (const Piece& piece : job.table->pieces) MILLRACE_TRY(check_piece(piece));
  add_pieces(job, tuning, manifest);

  MILLRACE_ASSIGN(const auto ranges, ranges_beside(source, *job.table));
  for (const SourceRange& range : ranges) {
    manifest.ranges.push_back({range, manifest.source_bin_bytes, {}});
    plan.items.push_back({0, manifest.source_bin_bytes, padded(range.bytes)});
    add_range_chunks(plan, static_cast<uint32_t>(plan.items.size() - 1), range, tuning.chunk_bytes);
    manifest.source_bin_bytes += padded(range.bytes);
  }
  for (const Piece& piece : manifest.table.pieces) {
    plan.items.push_back({piece.file + 1, piece.offset, piece.bytes});
    add_piece_chunks(plan, static_cast<uint32_t>(plan.items.size() - 1), piece, tuning.chunk_bytes);
  }
  plan.out_bytes = {manifest.source_bin_bytes};
  plan.out_bytes.insert(plan.out_bytes.end(), manifest.weights_bytes.begin(),
                        manifest.weights_bytes.end());
  for (const uint64_t bytes : plan.out_bytes) plan.total += bytes;
  plan.table_id = table_id(plan);

  // A name or table that the reader would refuse is found now, not after an hour of writing.
  MILLRACE_ASSIGN(const std::string text, write_manifest(manifest, source.config.get()));
  auto readable = read_manifest(kManifestName, text);
  if (!readable) return with_context("cannot pack this source", std::move(readable.error()));
  return plan;
}

}  // namespace millrace::format
