// The safetensors header: 8 bytes of length, then one JSON object, then tensor data without gaps.
//
// The JSON is read as a stream of events, so a hostile header costs no more memory than its
// tensors.
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>

#include "format/source.h"
#include "format/source_readers.h"

namespace millrace::format {
namespace {

// The limit of the reference implementation.
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxAxes = 32;

constexpr std::pair<std::string_view, SourceType> kDtypes[] = {
    {"F32", SourceType::kF32},        {"F16", SourceType::kF16},
    {"BF16", SourceType::kBF16},      {"F64", SourceType::kF64},
    {"I8", SourceType::kI8},          {"U8", SourceType::kU8},
    {"I16", SourceType::kI16},        {"U16", SourceType::kU16},
    {"I32", SourceType::kI32},        {"U32", SourceType::kU32},
    {"I64", SourceType::kI64},        {"U64", SourceType::kU64},
    {"BOOL", SourceType::kBool},      {"F8_E4M3", SourceType::kF8E4M3},
    {"F8_E5M2", SourceType::kF8E5M2}, {"F8_E8M0", SourceType::kF8E8M0},
};

// Accepts exactly {"name": {"dtype": s, "shape": [n...], "data_offsets": [a, b]}, ...} and
// "__metadata__": {s: s} or null.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderEvents(uint64_t data_begin) : data_begin_(data_begin) {}

  std::vector<SourceTensor> tensors;
  Error error;

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTensor:
        state_ = State::kField;
        return begin_tensor();
      case State::kMetadata:
        state_ = State::kMetadataKey;
        return true;
      default:
        return unexpected("object");
    }
  }
  bool end_object() override {
    switch (state_) {
      case State::kTop:
        state_ = State::kDone;
        return true;
      case State::kField:
        state_ = State::kTop;
        return end_tensor();
      case State::kMetadataKey:
        state_ = State::kTop;
        return true;
      default:
        return unexpected("end of object");
    }
  }
  bool key(string_t& text) override {
    switch (state_) {
      case State::kTop:
        if (!names_.insert(text).second)
          return wrong(fmt::format("tensor '{}' occurs twice", text));
        if (text == "__metadata__") {
          state_ = State::kMetadata;
        } else {
          name_ = text;
          state_ = State::kTensor;
        }
        return true;
      case State::kMetadataKey:
        if (!metadata_.insert(text).second) {
          return wrong(fmt::format("key '{}' of __metadata__ occurs twice", text));
        }
        state_ = State::kMetadataValue;
        return true;
      case State::kField:
        return field(text);
      default:
        return unexpected("key");
    }
  }
  bool string(string_t& text) override {
    if (state_ == State::kMetadataValue) {
      state_ = State::kMetadataKey;
      return true;
    }
    if (state_ != State::kDtype) return unexpected("string");
    for (const auto& [dtype, type] : kDtypes) {
      if (dtype == text) {
        tensor_.type = type;
        state_ = State::kField;
        return true;
      }
    }
    return wrong(fmt::format("tensor '{}': dtype {} is not supported", name_, text),
                 Code::kUnsupported);
  }
  bool start_array(std::size_t) override {
    if (state_ == State::kShape) {
      state_ = State::kShapeItems;
    } else if (state_ == State::kOffsets) {
      state_ = State::kOffsetItems;
    } else {
      return unexpected("array");
    }
    return true;
  }
  bool end_array() override {
    if (state_ == State::kOffsetItems && offsets_ != 2) {
      return wrong(fmt::format("tensor '{}': data_offsets needs two numbers", name_));
    }
    state_ = State::kField;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShapeItems) {
      if (tensor_.shape.size() == kMaxAxes) {
        return wrong(fmt::format("tensor '{}': more than {} axes", name_, kMaxAxes));
      }
      tensor_.shape.push_back(value);
      return true;
    }
    if (state_ == State::kOffsetItems) {
      if (offsets_ == 2)
        return wrong(fmt::format("tensor '{}': data_offsets needs two numbers", name_));
      span_[offsets_++] = value;
      return true;
    }
    return unexpected("number");
  }
  bool null() override {
    if (state_ != State::kMetadata) return unexpected("null");
    state_ = State::kTop;
    return true;
  }
  bool boolean(bool) override { return unexpected("boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("fraction"); }
  bool binary(binary_t&) override { return unexpected("binary"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return wrong(fmt::format("header is not JSON at byte {}", 8 + position));
  }

 private:
  enum class State {
    kStart,
    kTop,
    kTensor,
    kField,
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kMetadata,
    kMetadataKey,
    kMetadataValue,
    kDone,
  };

  bool begin_tensor() {
    tensor_ = {};
    tensor_.name = name_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return true;
  }
  bool field(const std::string& text) {
    bool* seen = nullptr;
    if (text == "dtype") {
      state_ = State::kDtype;
      seen = &has_dtype_;
    } else if (text == "shape") {
      state_ = State::kShape;
      seen = &has_shape_;
    } else if (text == "data_offsets") {
      state_ = State::kOffsets;
      seen = &has_offsets_;
      offsets_ = 0;
    } else {
      return wrong(fmt::format("tensor '{}': unknown field '{}'", name_, text));
    }
    if (*seen) return wrong(fmt::format("tensor '{}': field '{}' occurs twice", name_, text));
    *seen = true;
    return true;
  }
  bool end_tensor() {
    const std::string_view missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets";
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return wrong(fmt::format("tensor '{}': no {}", name_, missing));
    }
    auto bytes = tensor_bytes(tensor_.type, tensor_.shape);
    if (!bytes) return wrong(fmt::format("tensor '{}': {}", name_, bytes.error().message));
    if (span_[1] < span_[0] || span_[1] - span_[0] != *bytes) {
      return wrong(fmt::format("tensor '{}': {} {} needs {} bytes, but data_offsets are [{}, {}]",
                               name_, info(tensor_.type).name, shape_text(tensor_.shape), *bytes,
                               span_[0], span_[1]));
    }
    if (span_[1] > (uint64_t{1} << 62)) {
      return wrong(fmt::format("tensor '{}': data_offsets [{}, {}] reach past the end of the file",
                               name_, span_[0], span_[1]));
    }
    tensor_.offset = data_begin_ + span_[0];
    tensor_.bytes = *bytes;
    tensors.push_back(std::move(tensor_));
    return true;
  }
  bool unexpected(std::string_view what) {
    const bool inside = state_ != State::kStart && state_ != State::kTop && !name_.empty();
    return wrong(inside ? fmt::format("tensor '{}': unexpected {} in the header", name_, what)
                        : fmt::format("unexpected {} in the header", what));
  }
  bool wrong(std::string message, Code code = Code::kInvalid) {
    if (error.message.empty()) error = Error{code, std::move(message)};
    return false;
  }

  uint64_t data_begin_;
  State state_ = State::kStart;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_;
  std::string name_;
  SourceTensor tensor_;
  std::array<uint64_t, 2> span_ = {0, 0};
  size_t offsets_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

}  // namespace

Expected<std::vector<SourceTensor>> parse_safetensors_header(std::string_view name,
                                                             std::string_view head,
                                                             uint64_t file_size,
                                                             uint64_t* data_begin) {
  if (file_size < 8 || head.size() < 8) {
    return fail(Code::kInvalid, "{}: {} bytes is too short for a safetensors file", name,
                file_size);
  }
  uint64_t length = 0;
  std::memcpy(&length, head.data(), 8);
  if (length > kMaxHeader) {
    return fail(Code::kInvalid,
                "{}: header length {} is over the limit of {}: not a safetensors file?", name,
                length, kMaxHeader);
  }
  if (length > file_size - 8 || length > head.size() - 8) {
    return fail(Code::kInvalid, "{}: header length {} reaches past the end of the file ({} bytes)",
                name, length, file_size);
  }
  HeaderEvents events(8 + length);
  const std::string_view json = head.substr(8, length);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) {
    if (events.error.message.empty()) events.error = {Code::kInvalid, "header is not JSON"};
    return with_context(name, std::move(events.error));
  }
  MILLRACE_TRY(check_placement(name, events.tensors, 8 + length, file_size, 1, true));
  if (data_begin != nullptr) *data_begin = 8 + length;
  return std::move(events.tensors);
}

}  // namespace millrace::format
