#include "text/detokenizer.h"

#include <utility>

#include "text/tokenizer_data.h"

namespace millrace {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DecodeOptions options)
    : tokenizer_(tokenizer.data_),
      options_(options),
      at_start_(tokenizer_->leading_blank && !options.continuation) {}

std::string Detokenizer::push(std::uint32_t id) {
  if (!tokenizer_->exact) return push_by_library(id);
  std::string out;
  if (!tokenizer_->present(id)) return out;
  if (options_.skip_special && tokenizer_->special(id)) return out;
  append(tokenizer_->piece(id), out);
  return out;
}

void Detokenizer::append(std::string_view bytes, std::string& out) {
  if (!at_start_) return utf8_.push(bytes, out);
  start_ += bytes;
  if (start_.empty()) return;
  if (start_.front() == ' ') {
    if (!tokenizer_->blank_only_if_absent) {
      start_.erase(0, 1);
    } else if (start_.size() == 1) {
      return;  // one blank is the encoder's; two are the text's own: wait for the next byte
    } else if (start_[1] != ' ') {
      start_.erase(0, 1);
    }
  }
  at_start_ = false;
  utf8_.push(std::exchange(start_, {}), out);
}

std::string Detokenizer::flush() {
  std::string out;
  if (!tokenizer_->exact) {
    const std::string whole = tokenizer_->decode_by_library(ids_, options_.skip_special);
    // What has been given out cannot be taken back; the rest follows it.
    if (whole.size() > emitted_.size()) out = whole.substr(emitted_.size());
    emitted_ = whole;
    return out;
  }
  // A lone leading blank is the encoder's.
  start_.clear();
  at_start_ = false;
  utf8_.flush(out);
  return out;
}

std::string Detokenizer::push_by_library(std::uint32_t id) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  ids_.push_back(id);
  std::string whole = tokenizer_->decode_by_library(ids_, options_.skip_special);
  if (whole.ends_with(kReplacement) || !whole.starts_with(emitted_)) return {};
  std::string out = whole.substr(emitted_.size());
  emitted_ = std::move(whole);
  return out;
}

}  // namespace millrace
