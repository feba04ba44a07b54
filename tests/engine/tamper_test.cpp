// The weight audit over every fixture: a tensor that is renamed, missing or unknown is refused by
// its name, whatever it is for. Only the list of tensors changes; no weights are read.
#include <functional>
#include <set>

#include "api/model_impl.h"
#include "tests/support/fixtures.h"

namespace millrace::test {
namespace {

using format::ModelSource;
using format::SourceTensor;

// Experts between the first and the last are like them.
bool is_inner_expert(const std::string& name, uint32_t experts) {
  const size_t at = name.find("experts.");
  if (at == std::string::npos || name.find("shared_experts.") != std::string::npos) return false;
  const int expert = std::atoi(name.c_str() + at + 8);
  return expert > 0 && expert + 1 < static_cast<int>(experts);
}

// Values that the reference has as constants, and that files may leave out.
bool is_optional(const std::string& name) {
  return name.ends_with("act_fn.beta") || name.ends_with("act_fn.eps");
}

class Tamper : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const bool fixture = GetParam() != "tiny-moe-4bit";
    auto source = format::open_source(fixture ? golden(GetParam()) : repo("models/tiny-moe-4bit"));
    ASSERT_TRUE(source) << source.error().message;
    source_ = std::move(*source);
    model::ModelSpec spec;
    format::PieceTable table;
    model::WeightAudit audit;
    ASSERT_TRUE(build_model(source_, &spec, &table, &audit));
    dropped_.insert(audit.dropped.begin(), audit.dropped.end());
    layers_ = static_cast<uint32_t>(spec.layers.size()) + spec.predicting;
    for (const auto& layer : spec.layers)
      if (layer.ffn.moe) experts_ = layer.ffn.moe->experts;
  }
  // The error of opening, or nothing.
  static std::string open(const ModelSource& source) {
    model::ModelSpec spec;
    format::PieceTable table;
    auto status = build_model(source, &spec, &table, nullptr);
    return status ? "" : status.error().message;
  }
  std::string with(const std::function<void(std::vector<SourceTensor>*)>& change) const {
    ModelSource changed = source_;
    change(&changed.tensors);
    changed.by_name.clear();
    for (uint32_t i = 0; i < changed.tensors.size(); ++i)
      changed.by_name[changed.tensors[i].name] = i;
    return open(changed);
  }
  std::string with_extra(const std::string& name) const {
    return with([&](std::vector<SourceTensor>* tensors) {
      tensors->push_back(tensors->front());
      tensors->back().name = name;
    });
  }
  static bool names(const std::string& message, const std::string& tensor) {
    return message.find("'" + tensor + "'") != std::string::npos;
  }
  // Whether the tensor is left out here: dropped on purpose (then not even its name matters), or
  // like another.
  bool skips(const std::string& name) const {
    return dropped_.count(name) || is_inner_expert(name, experts_);
  }
  ModelSource source_;
  std::set<std::string> dropped_;
  uint32_t layers_ = 0, experts_ = 0;
};

TEST_P(Tamper, EveryTensorIsMissedByName) {
  ASSERT_FALSE(HasFatalFailure());
  for (size_t t = 0; t < source_.tensors.size(); ++t) {
    const std::string& name = source_.tensors[t].name;
    if (skips(name)) continue;
    const std::string renamed = name + "_renamed";
    const auto of_renamed =
        with([&](std::vector<SourceTensor>* tensors) { (*tensors)[t].name = renamed; });
    EXPECT_TRUE(names(of_renamed, name) || names(of_renamed, renamed))
        << name << " renamed: " << of_renamed;
    if (is_optional(name)) continue;
    const auto of_missing = with([&](std::vector<SourceTensor>* tensors) {
      tensors->erase(tensors->begin() + static_cast<std::ptrdiff_t>(t));
    });
    EXPECT_TRUE(names(of_missing, name)) << name << " missing: " << of_missing;
  }
}

// What is dropped belongs to another model in the file.
TEST_P(Tamper, OnlyPicturesAndSoundAreDropped) {
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(dropped_.empty(), !source_.config->contains("text_config"));
  for (const auto& name : dropped_) {
    EXPECT_TRUE(name.find("vision") != std::string::npos ||
                name.find("visual") != std::string::npos ||
                name.find("audio") != std::string::npos ||
                name.find("multi_modal_projector") != std::string::npos)
        << name;
  }
}

TEST_P(Tamper, EveryUnknownTensorIsNamed) {
  ASSERT_FALSE(HasFatalFailure());
  for (const SourceTensor& tensor : source_.tensors) {
    const std::string& name = tensor.name;
    if (skips(name)) continue;
    // A sibling, and the biases and norms that other families have.
    std::vector<std::string> extras = {name + ".more"};
    if (name.ends_with(".weight")) extras.push_back(name.substr(0, name.size() - 6) + "bias");
    // The same in an expert or a layer more than there are.
    if (const size_t at = name.find("experts.0."); at != std::string::npos)
      extras.push_back(name.substr(0, at + 8) + std::to_string(experts_) + name.substr(at + 9));
    if (const size_t at = name.find("layers.0."); at != std::string::npos)
      extras.push_back(name.substr(0, at + 7) + std::to_string(layers_) + name.substr(at + 8));
    for (const auto& extra : extras) {
      if (source_.find(extra)) continue;
      const auto message = with_extra(extra);
      EXPECT_TRUE(names(message, extra)) << extra << ": " << message;
    }
  }
}

std::vector<std::string> models() {
  auto names = fixtures();
  names.push_back("tiny-moe-4bit");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, Tamper, testing::ValuesIn(models()), [](const auto& model) {
  return model.param == "tiny-moe-4bit" ? "quantized" : model.param;
});

}  // namespace
}  // namespace millrace::test
