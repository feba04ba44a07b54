// A spec in words: which mixers, feed-forward parts and caches a model has. For tables that people
// read; derived from the spec, so that they cannot say anything else than what runs.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"

namespace millrace::model {

// Each without repetition, in the order of their first layer.
struct Axes {
  std::vector<std::string> mixer;      // "attention", "sliding attention", "mamba2", ...
  std::vector<std::string> ffn;        // "dense", "experts", "experts + shared", ...
  std::vector<std::string> streaming;  // what is read from the disk at a time: "expert", "layer"
  std::vector<std::string> kv;         // what is kept of a sequence: "full", "window", "state", ...
  std::vector<std::string> ports;      // what a drafter may ask for: "embedding", "kv", ...
};

// Adds what `spec` has.
void add_axes(const ModelSpec& spec, Axes* axes);

}  // namespace millrace::model
