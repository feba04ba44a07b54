// Runs tests of the operations once for each table that this processor can run.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/ops.h"

namespace millrace::kernels {

class EveryOps : public testing::TestWithParam<const Ops*> {
 protected:
  void SetUp() override { tested() = GetParam(); }

 public:
  static const Ops*& tested() {
    static const Ops* ops = &scalar_ops();
    return ops;
  }
};

// The table under test, beside which scalar_ops() is the reference.
inline const Ops& tested_ops() { return *EveryOps::tested(); }

// All but the scalar one, unless there is nothing else.
inline std::vector<const Ops*> runnable_ops() {
  const Cpu cpu = Cpu::detect();
  std::vector<const Ops*> tables;
  for (const OpsRung& rung : ops_ladder()) {
    if (cpu.has(rung.isa) && (rung.isa != Isa::kScalar || tables.empty())) {
      tables.push_back(rung.ops);
    }
  }
  return tables;
}

inline std::string ops_name(const testing::TestParamInfo<const Ops*>& tested) {
  return tested.param->name;
}

}  // namespace millrace::kernels
