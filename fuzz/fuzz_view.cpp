// Views over hostile tensors: what view_extents accepts must pack and unpack inside its bounds, and
// come back as the same bytes.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstring>

#include "check_source.h"
#include "format/source_readers.h"

namespace {

using namespace millrace;

constexpr uint64_t kMostBytes = 1 << 16;

uint32_t add_tensor(FuzzedDataProvider& data, format::ModelSource& source) {
  if (data.ConsumeProbability<float>() < 0.3f) return format::kNoTensor;
  format::SourceTensor tensor;
  tensor.name = "t";
  tensor.type = static_cast<format::SourceType>(data.ConsumeIntegralInRange<int>(0, 28));
  for (int axes = data.ConsumeIntegralInRange<int>(0, 4); axes > 0; --axes) {
    tensor.shape.push_back(data.ConsumeBool() ? data.ConsumeIntegralInRange<uint64_t>(0, 40)
                                              : data.ConsumeIntegral<uint64_t>() & 0x3ffffffe0);
  }
  auto bytes = format::tensor_bytes(tensor.type, tensor.shape);
  if (!bytes) return format::kNoTensor;
  tensor.bytes = *bytes;
  tensor.offset =
      source.tensors.empty() ? 0 : source.tensors.back().offset + source.tensors.back().bytes;
  source.tensors.push_back(std::move(tensor));
  return static_cast<uint32_t>(source.tensors.size() - 1);
}

void round_trip(const format::ModelSource& source, const format::WeightView& view,
                const std::array<format::Extent, 3>& extents, FuzzedDataProvider& data) {
  std::array<std::vector<std::byte>, 3> bytes, back;
  std::array<std::span<const std::byte>, 3> from;
  std::array<std::span<std::byte>, 3> to;
  uint32_t seed = data.ConsumeIntegral<uint32_t>();
  for (size_t i = 0; i < 3; ++i) {
    bytes[i].resize(extents[i].bytes);
    for (std::byte& byte : bytes[i])
      byte = static_cast<std::byte>((seed = seed * 1664525u + 1013904223u) >> 24);
    back[i] = bytes[i];
    // Unpacking may only write what the view covers: wipe the covered bytes by unpacking zeros.
    from[i] = bytes[i];
    to[i] = back[i];
  }
  std::vector<std::byte> packed(format::view_bytes(view));
  const std::vector<std::byte> zeros(packed.size());
  format::pack_view(source, view, from, packed);
  format::unpack_view(source, view, zeros, to);
  format::unpack_view(source, view, packed, to);
  fuzz::require(back == bytes);
  if (view.vector) return;
  std::vector<float> row(view.layout.cols);
  format::dequantize_row(view.layout, packed.data(), view.layout.rows - 1, row.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  format::ModelSource source;
  source.files.push_back({"f", "f", UINT64_MAX, 0});
  format::WeightView view;
  view.weight = add_tensor(data, source);
  view.scales = add_tensor(data, source);
  view.biases = add_tensor(data, source);
  format::QuantParams quant;
  quant.bits = data.ConsumeIntegralInRange<uint8_t>(0, 9);
  quant.group = data.PickValueInArray<uint16_t>({0, 32, 64, 128, 48});
  quant.mxfp4 = data.ConsumeBool();
  view.scale_rows = quant.scale_rows = data.PickValueInArray<uint16_t>({0, 1, 7, 128});
  view.scale_cols = quant.scale_cols = data.PickValueInArray<uint16_t>({0, 16, 32, 96, 128});
  auto layout = format::layout_of(source, view.weight, view.scales, view.biases, quant);
  if (layout) view.layout = *layout;
  if (data.ConsumeBool()) view.layout.rows = data.ConsumeIntegral<uint32_t>();
  if (data.ConsumeBool()) view.layout.cols = data.ConsumeIntegral<uint32_t>();
  if (data.ConsumeBool()) std::swap(view.layout.rows, view.layout.cols);
  view.vector = data.ConsumeBool();
  view.transposed = data.ConsumeBool();
  view.index = data.ConsumeIntegral<uint64_t>();
  if (data.ConsumeBool()) view.index %= 4;
  view.row_begin = data.ConsumeIntegralInRange<uint32_t>(0, 8);
  view.row_step = data.ConsumeIntegralInRange<uint32_t>(0, 3);
  auto extents = format::view_extents(source, view);
  if (!extents) return 0;
  uint64_t total = format::view_bytes(view);
  const std::array<uint32_t, 3> tensors = {view.weight, view.scales, view.biases};
  for (size_t i = 0; i < 3; ++i) {
    const format::Extent& extent = (*extents)[i];
    if (extent.bytes == 0) continue;
    const format::SourceTensor& tensor = source.tensors[tensors[i]];
    fuzz::require(extent.offset >= tensor.offset);
    fuzz::require(extent.offset + extent.bytes <= tensor.offset + tensor.bytes);
    total = std::max(total, extent.bytes);
  }
  if (total <= kMostBytes) round_trip(source, view, *extents, data);
  return 0;
}
