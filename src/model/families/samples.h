// One small config for each shape that a family's models come in. The table of families is what
// the builders make of them.
#pragma once

#include "model/axes.h"
#include "model/families/family.h"

namespace millrace::model {

// Of all samples of the family, and a port for the layers that predict further tokens when the
// family's files may hold such.
Expected<Axes> axes_of(const Family& family);

}  // namespace millrace::model
