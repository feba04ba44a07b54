// Where the words come from: a file, standard input, or a conversation through the chat template.
#pragma once

#include <string>
#include <vector>

#include "millrace/millrace.h"

namespace millrace::cli {

Expected<std::string> read_text_file(const std::string& flag, const std::string& path);
Expected<std::string> read_stdin();

struct Message {
  std::string role, content;
};
// The conversation as prompt ids, through the model's own template.
Expected<std::vector<Token>> chat_prompt(const Model& model, const std::vector<Message>& messages);

}  // namespace millrace::cli
