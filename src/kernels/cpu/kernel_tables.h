// Which instance of an instruction set's product templates serves a format; null: none in the table.
//
// A table takes a type with the member template `of`: its instances by Traits (floats_of: by
// WeightFormat). A file calls the table that it is there for, and only that one's instances are
// compiled: those of one set together take minutes.
#pragma once

#include "kernels/cpu/format_traits.h"

namespace millrace::kernels {
namespace {

template <class Kernels>
inline MatmulFn block32_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return Kernels::template of<kQ4_0>;
    case WeightFormat::kQ4_1:
      return Kernels::template of<kQ4_1>;
    case WeightFormat::kQ5_0:
      return Kernels::template of<kQ5_0>;
    case WeightFormat::kQ5_1:
      return Kernels::template of<kQ5_1>;
    case WeightFormat::kQ8_0:
      return Kernels::template of<kQ8_0>;
    case WeightFormat::kIQ4_NL:
      return Kernels::template of<kIQ4_NL>;
    case WeightFormat::kMXFP4:
      return Kernels::template of<kMXFP4>;
    default:
      return nullptr;
  }
}

template <class Kernels>
inline MatmulFn kquants_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ2_K:
      return Kernels::template of<kQ2_K>;
    case WeightFormat::kQ3_K:
      return Kernels::template of<kQ3_K>;
    case WeightFormat::kQ4_K:
      return Kernels::template of<kQ4_K>;
    case WeightFormat::kQ5_K:
      return Kernels::template of<kQ5_K>;
    case WeightFormat::kQ6_K:
      return Kernels::template of<kQ6_K>;
    case WeightFormat::kIQ4_XS:
      return Kernels::template of<kIQ4_XS>;
    default:
      return nullptr;
  }
}

template <class Kernels>
inline MatmulFn affine_of(uint8_t bits) {
  switch (bits) {
    case 2:
      return Kernels::template of<affine(2)>;
    case 3:
      return Kernels::template of<affine(3)>;
    case 4:
      return Kernels::template of<affine(4)>;
    case 5:
      return Kernels::template of<affine(5)>;
    case 6:
      return Kernels::template of<affine(6)>;
    case 8:
      return Kernels::template of<affine(8)>;
    default:
      return nullptr;
  }
}

// Every format with codes, for float activations.
template <class Kernels>
inline MatmulFn quant_of(WeightFormat format, uint8_t bits) {
  if (format == WeightFormat::kAffine) return affine_of<Kernels>(bits);
  if (format == WeightFormat::kFP8_E4M3) return Kernels::template of<kFP8_E4M3>;
  if (format == WeightFormat::kNVFP4) return Kernels::template of<kNVFP4>;
  const MatmulFn run = block32_of<Kernels>(format);
  return run != nullptr ? run : kquants_of<Kernels>(format);
}

template <class Kernels>
inline MatmulFn floats_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return Kernels::template of<WeightFormat::kF32>;
    case WeightFormat::kF16:
      return Kernels::template of<WeightFormat::kF16>;
    case WeightFormat::kBF16:
      return Kernels::template of<WeightFormat::kBF16>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace millrace::kernels
