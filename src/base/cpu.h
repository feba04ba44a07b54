// What the processor can do, found once at start.
#pragma once

#include <string>

namespace millrace {

struct Cpu {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, VL, DQ
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx_int8 = false;
  bool neon_dotprod = false;
  bool neon_i8mm = false;
  std::string model;     // "AMD EPYC ..."
  unsigned logical = 1;  // processors this process may run on (affinity and cgroup quota)

  static Cpu detect();
  // Nothing but portable C++: for tests.
  static Cpu scalar() { return {}; }
};

}  // namespace millrace
