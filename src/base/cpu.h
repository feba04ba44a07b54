// What the processor can do, found once at start.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

// Instruction sets that kernels are written for, each a rung of the dispatch ladder.
enum class Isa : uint8_t {
  kScalar,      // portable C++
  kAvx2,        // with FMA and F16C
  kAvx512,      // F, BW, VL, DQ
  kAvx512Vnni,  // and int8 dot products
  kNeon,        // what every arm64 has
  kNeonDotprod,
  kNeonI8mm,
};

std::string_view name(Isa isa);  // "avx512_vnni"

struct Cpu {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, VL, DQ
  bool avx512_vnni = false;
  bool neon = false;
  bool neon_dotprod = false;
  bool neon_i8mm = false;
  std::string model;     // "AMD EPYC ..."
  unsigned logical = 1;  // processors this process may run on (affinity and cgroup quota)

  static Cpu detect();
  // Nothing but portable C++: for tests.
  static Cpu scalar() { return {}; }

  bool has(Isa isa) const;
  std::vector<Isa> sets() const;  // all that it has, least first
  // The same processor without the sets above `name`; an error when it lacks that one.
  Expected<Cpu> limited_to(std::string_view name) const;
};

}  // namespace millrace
