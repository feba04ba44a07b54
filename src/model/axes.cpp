#include "model/axes.h"

#include <algorithm>

#include "model/state.h"

namespace millrace::model {
namespace {

void add(std::vector<std::string>* list, const std::string& word) {
  if (std::find(list->begin(), list->end(), word) == list->end()) list->push_back(word);
}

// Mixers of one layer that run side by side are one word.
std::string mixer_of(const LayerSpec& layer) {
  std::string word;
  const auto more = [&](bool present, const char* name) {
    if (present) word += word.empty() ? name : std::string(" + ") + name;
  };
  more(layer.attention.heads && !layer.attention.window, "attention");
  more(layer.attention.heads && layer.attention.window, "sliding attention");
  more(layer.mla && !layer.mla->indexer, "latent attention");
  more(layer.mla && layer.mla->indexer, "sparse latent attention");
  more(layer.delta.has_value(), "gated delta net");
  more(layer.mamba.has_value(), "mamba2");
  more(layer.conv.has_value(), "short convolution");
  return word;
}

std::string ffn_of(const FfnSpec& ffn) {
  if (!ffn.moe) return "dense";
  if (!ffn.moe->shared_width) return "experts";
  return ffn.moe->apart ? "experts + dense" : "experts + shared";
}

}  // namespace

void add_axes(const ModelSpec& spec, Axes* axes) {
  for (const char* port : {"embedding", "head", "taps"}) add(&axes->ports, port);
  for (const LayerSpec& layer : spec.layers) {
    if (layer.has_mixer()) add(&axes->mixer, mixer_of(layer));
    if (layer.has_ffn()) {
      add(&axes->ffn, ffn_of(layer.ffn));
      add(&axes->streaming, layer.ffn.moe ? "expert" : "layer");
    }
    const AttentionSpec& a = layer.attention;
    if (a.heads && a.kv_from >= 0) add(&axes->kv, "of an earlier layer");
    if (a.heads && a.kv_from < 0) {
      add(&axes->kv, a.window ? "window" : "full");
      add(&axes->ports, "kv");
    }
    if (layer.mla) add(&axes->kv, "latent");
    if (layer.mla && layer.mla->indexer && !layer.mla->indexer->shared)
      add(&axes->kv, "index keys");
    const StateSize state = StateSize::of(spec, layer);
    if (state.tail || state.matrices) add(&axes->kv, "state");
  }
}

}  // namespace millrace::model
