// The tokenizer keys of a GGUF file, as plain data, so that text/ does not know the file format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

struct GgufVocab {
  std::string model;                      // tokenizer.ggml.model: gpt2, llama, gemma4, t5
  std::string pre;                        // tokenizer.ggml.pre; gpt2 needs it
  std::vector<std::string> tokens;        // (vocab)
  std::vector<float> scores;              // (vocab), or empty; llama and t5 need it
  std::vector<std::int32_t> token_types;  // (vocab), or empty: 1 normal, 2 unknown, 3 control,
                                          // 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;        // "left right", best first; gpt2 and gemma4 need it
  std::vector<std::uint8_t> precompiled_charsmap;
  std::optional<std::uint32_t> bos;
  std::optional<std::uint32_t> eos;
  std::optional<std::uint32_t> eot;
  std::optional<std::uint32_t> eom;
  std::optional<std::uint32_t> unk;
  std::optional<std::uint32_t> pad;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;
  std::string name;     // general.name: Phi-3 needs a rule that has no key
  std::string hf_json;  // tokenizer.huggingface.json: exact where it exists
};

}  // namespace millrace
