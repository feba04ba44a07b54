// The one list of weight formats, and random packed weights and activations for them: what the kernel
// tests, the benchmarks and the tuning of kernels run over.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "format/layout.h"
#include "kernels/matmul.h"

namespace millrace::bench {

using format::ScaleType;
using format::WeightFormat;
using format::WeightLayout;

struct Case {
  std::string name;
  WeightLayout layout;  // without rows and cols
};

inline Case affine_case(uint8_t bits, uint16_t group, ScaleType type) {
  const char* types[] = {"f32", "f16", "bf16"};
  WeightLayout layout;
  layout.format = WeightFormat::kAffine;
  layout.bits = bits;
  layout.group = group;
  layout.scale_type = type;
  return {"affine" + std::to_string(bits) + "_g" + std::to_string(group) + "_" +
              types[static_cast<int>(type)],
          layout};
}

enum class Scope {
  kAll,       // every group and scale type of the affine formats
  kEachOnce,  // every format and number of bits, every group and scale type with some of them
  kOrdinary,  // every format and number of bits, affine as in most MLX models
};

inline bool in_scope(uint8_t bits, uint16_t group, ScaleType type, Scope scope) {
  if (scope == Scope::kOrdinary) return group == 64 && type == ScaleType::kBF16;
  // A Latin square of groups and types.
  const int row = group == 32 ? 0 : group == 64 ? 1 : 2;
  return scope == Scope::kAll || (row + static_cast<int>(type) + bits) % 3 == 0;
}

inline std::vector<Case> all_cases(Scope scope = Scope::kAll) {
  std::vector<Case> cases;
  for (int i = 0; i < format::kWeightFormats; ++i) {
    WeightLayout layout;
    layout.format = static_cast<WeightFormat>(i);
    if (layout.format == WeightFormat::kAffine) continue;
    cases.push_back({std::string(format::name(layout.format)), layout});
  }
  for (uint8_t bits : {2, 3, 4, 5, 6, 8}) {
    for (uint16_t group : {32, 64, 128}) {
      for (ScaleType type : {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16}) {
        if (in_scope(bits, group, type, scope)) cases.push_back(affine_case(bits, group, type));
      }
    }
  }
  return cases;
}

inline WeightLayout with_shape(WeightLayout layout, uint32_t rows, uint32_t cols) {
  layout.rows = rows;
  layout.cols = cols;
  return layout;
}

// Which scales a random weight gets.
enum class Scales {
  kOrdinary,  // as in models: outputs of ordinary size
  kExtreme,   // zeros, subnormals, the largest, either sign; codes at their ends
};

class RandomWeight {
 public:
  RandomWeight(const WeightLayout& layout, Scales scales, uint64_t seed)
      : layout_(layout), scales_(scales), random_(seed), bytes_(format::packed_bytes(layout) + 1) {
    fill();
  }

  kernels::Weight weight() const { return {layout_, bytes_.data() + 1}; }  // misaligned on purpose
  const std::byte* data() const { return bytes_.data() + 1; }
  const WeightLayout& layout() const { return layout_; }

 private:
  float scale() {
    if (scales_ == Scales::kExtreme) {
      const float values[] = {0.0f, -0.0f, 0x1p-24f, -0x1p-20f, 65504.0f, -65504.0f, 1.0f, -0.3f};
      return values[random_() % 8];
    }
    return std::normal_distribution<float>(0.0f, 0.02f)(random_);
  }
  void put_f32(uint8_t* p, float v) { std::memcpy(p, &v, 4); }
  void put_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }
  void put(uint8_t*& p, ScaleType type) {
    const float v = scale();
    if (type == ScaleType::kF32) {
      put_f32(p, v);
      p += 4;
    } else {
      put_u16(p, type == ScaleType::kF16 ? f32_to_f16(v) : f32_to_bf16(v));
      p += 2;
    }
  }
  void put_eight(uint8_t*& p, ScaleType type) {
    for (int i = 0; i < 8; ++i) put(p, type);
  }

  // Everything random (codes of every value, integer scales too), then the float scales over it.
  void fill() {
    auto* p = reinterpret_cast<uint8_t*>(bytes_.data()) + 1;
    const uint64_t blocks = format::packed_bytes(layout_) / format::block_bytes(layout_);
    const uint64_t block_bytes = format::block_bytes(layout_);
    for (uint64_t b = 0; b < blocks; ++b) {
      uint8_t* block = p + b * block_bytes;
      const int kind = scales_ == Scales::kExtreme ? static_cast<int>(random_() % 4) : 0;
      for (uint64_t i = 0; i < block_bytes; i += 8) {
        uint64_t word = random_();
        if (kind == 1) word = ~0ull;
        if (kind == 2) word = 0;
        if (kind == 3) word = 0x8080808080808080ull;
        std::memcpy(block + i, &word, block_bytes - i < 8 ? block_bytes - i : 8);
      }
      scales(block);
      six_bit_scales(block);
      if (scales_ == Scales::kOrdinary) no_nan(block);
    }
  }
  void scales(uint8_t* p) {
    switch (layout_.format) {
      case WeightFormat::kF32:
      case WeightFormat::kFP8_E4M3:
      case WeightFormat::kNVFP4:  // its e4m3 scales stay random
        return put_eight(p, ScaleType::kF32);
      case WeightFormat::kF16:
        return put_eight(p, ScaleType::kF16);
      case WeightFormat::kBF16:
        return put_eight(p, ScaleType::kBF16);
      case WeightFormat::kMXFP4: {
        const bool extreme = scales_ == Scales::kExtreme;
        for (int i = 0; i < 8; ++i) {
          p[i] = static_cast<uint8_t>(extreme ? random_() % 4 : 118 + random_() % 8);
        }
        return;
      }
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ5_1:
      case WeightFormat::kQ2_K:
      case WeightFormat::kQ4_K:
      case WeightFormat::kQ5_K:
        put_eight(p, ScaleType::kF16);
        return put_eight(p, ScaleType::kF16);
      case WeightFormat::kAffine:
        put_eight(p, layout_.scale_type);
        return put_eight(p, layout_.scale_type);
      default:
        return put_eight(p, ScaleType::kF16);
    }
  }
  // e4m3 bytes, which may be any, as no writer makes them: NaN becomes its neighbour.
  void no_nan(uint8_t* block) {
    const bool fp8 = layout_.format == WeightFormat::kFP8_E4M3;
    if (!fp8 && layout_.format != WeightFormat::kNVFP4) return;
    const uint32_t end = fp8 ? 32 + 256 : 32 + 16;
    for (uint32_t i = 32; i < end; ++i) {
      if ((block[i] & 0x7f) == 0x7f) block[i] ^= 1;
    }
  }
  // Formats whose integer scales have six bits.
  void six_bit_scales(uint8_t* block) {
    const WeightFormat f = layout_.format;
    const bool two =
        f == WeightFormat::kQ4_K || f == WeightFormat::kQ5_K || f == WeightFormat::kQ3_K;
    if (!two && f != WeightFormat::kIQ4_XS) return;
    const uint32_t header = f == WeightFormat::kQ4_K || f == WeightFormat::kQ5_K ? 32 : 16;
    const uint32_t ints = two ? 16 : 8;
    const uint32_t group = ints + 32 * format::code_bits(layout_);
    for (uint32_t g = 0; g < 8; ++g) {
      for (uint32_t i = 0; i < ints; ++i) block[header + g * group + i] &= 63;
    }
  }

  WeightLayout layout_;
  Scales scales_;
  std::mt19937_64 random_;
  std::vector<std::byte> bytes_;
};

// Random activations with their int8 form.
class RandomRows {
 public:
  RandomRows(uint32_t count, uint32_t cols, uint64_t seed) : count_(count), cols_(cols) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    f32_.resize(uint64_t{count} * cols);
    for (float& x : f32_) x = normal(random);
    if (cols % format::kGroup != 0) return;
    q_.resize(f32_.size());
    scale_.resize(f32_.size() / 32);
    sum_.resize(f32_.size() / 16);
    for (uint32_t r = 0; r < count; ++r) {
      const uint64_t at = uint64_t{r} * cols;
      kernels::quantize_row(f32_.data() + at, cols, q_.data() + at, scale_.data() + at / 32,
                            sum_.data() + at / 16);
    }
  }

  // Codes at their ends: +-127 everywhere, the worst case for intermediate sums.
  void saturate() {
    for (uint64_t i = 0; i < q_.size(); ++i) q_[i] = (i / 96) % 2 == 0 ? 127 : -127;
    for (uint64_t g = 0; g < sum_.size(); ++g) {
      int sum = 0;
      for (int i = 0; i < 16; ++i) sum += q_[16 * g + static_cast<uint64_t>(i)];
      sum_[g] = static_cast<int16_t>(sum);
    }
  }

  kernels::Rows rows(uint32_t begin, uint32_t count) const {
    kernels::Rows rows;
    const uint64_t at = uint64_t{begin} * cols_;
    rows.count = count;
    rows.cols = cols_;
    rows.f32 = f32_.data() + at;
    rows.stride = cols_;
    if (!q_.empty()) {
      rows.q = q_.data() + at;
      rows.scale = scale_.data() + at / 32;
      rows.sum = sum_.data() + at / 16;
    }
    return rows;
  }
  kernels::Rows rows() const { return rows(0, count_); }

 private:
  uint32_t count_, cols_;
  std::vector<float> f32_;
  std::vector<int8_t> q_;
  std::vector<float> scale_;
  std::vector<int16_t> sum_;
};

}  // namespace millrace::bench
