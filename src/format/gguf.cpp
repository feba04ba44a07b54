// The GGUF header: metadata and tensor table, little-endian, versions 2 and 3.
#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>
#include <unordered_set>

#include "base/numeric.h"
#include "format/source.h"
#include "format/source_readers.h"

namespace millrace::format {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMaxAxes = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;
// Arrays are widened to 64 bits an element; the longest real one (merges) is below 2^20.
constexpr uint64_t kMaxArray = uint64_t{1} << 24;
// Tensors and keys of the largest models are below 2^17.
constexpr uint64_t kMaxCount = uint64_t{1} << 24;

enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kCount,
};

// Every tensor type that GGUF has, so that one we do not carry is refused by name.
struct TypeEntry {
  uint32_t id;
  std::string_view name;
  std::optional<SourceType> type;
};
const TypeEntry kTypes[] = {
    {0, "f32", SourceType::kF32},
    {1, "f16", SourceType::kF16},
    {2, "q4_0", SourceType::kQ4_0},
    {3, "q4_1", SourceType::kQ4_1},
    {6, "q5_0", SourceType::kQ5_0},
    {7, "q5_1", SourceType::kQ5_1},
    {8, "q8_0", SourceType::kQ8_0},
    {9, "q8_1", {}},
    {10, "q2_K", SourceType::kQ2_K},
    {11, "q3_K", SourceType::kQ3_K},
    {12, "q4_K", SourceType::kQ4_K},
    {13, "q5_K", SourceType::kQ5_K},
    {14, "q6_K", SourceType::kQ6_K},
    {15, "q8_K", {}},
    {16, "iq2_xxs", {}},
    {17, "iq2_xs", {}},
    {18, "iq3_xxs", {}},
    {19, "iq1_s", {}},
    {20, "iq4_nl", SourceType::kIQ4_NL},
    {21, "iq3_s", {}},
    {22, "iq2_s", {}},
    {23, "iq4_xs", SourceType::kIQ4_XS},
    {24, "i8", SourceType::kI8},
    {25, "i16", SourceType::kI16},
    {26, "i32", SourceType::kI32},
    {27, "i64", SourceType::kI64},
    {28, "f64", SourceType::kF64},
    {29, "iq1_m", {}},
    {30, "bf16", SourceType::kBF16},
    {34, "tq1_0", {}},
    {35, "tq2_0", {}},
    {39, "mxfp4", SourceType::kMXFP4},
};

// Reads little-endian values off the front of the header. Once it runs out it stays `exhausted`,
// and every value is zero; callers check after each item.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    T value{};
    if (!take(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data() + at_ - sizeof(T), sizeof(T));
    return value;
  }
  std::string_view string() {
    const auto length = number<uint64_t>();
    if (!take(length)) return {};
    return bytes_.substr(at_ - length, length);
  }
  bool exhausted() const { return exhausted_; }
  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }
  void give_up() { exhausted_ = true; }

 private:
  bool take(uint64_t bytes) {
    if (exhausted_ || bytes > left()) {
      exhausted_ = true;
      return false;
    }
    at_ += bytes;
    return true;
  }
  std::string_view bytes_;
  uint64_t at_ = 0;
  bool exhausted_ = false;
};

class HeaderParser {
 public:
  HeaderParser(std::string_view name, std::string_view head, uint64_t file_size)
      : name_(name), cursor_(head), file_size_(file_size) {}

  bool exhausted() const { return cursor_.exhausted(); }

  Expected<GgufHeader> parse() {
    if (cursor_.number<uint32_t>() != kMagic && !exhausted()) {
      return fail(Code::kInvalid, "{}: not a GGUF file (bad magic)", name_);
    }
    const auto version = cursor_.number<uint32_t>();
    if (!exhausted() && version != 2 && version != 3) {
      const bool swapped = version != 0 && (version & 0xffff) == 0;
      if (swapped) return fail(Code::kUnsupported, "{}: big-endian GGUF is not supported", name_);
      return fail(Code::kUnsupported, "{}: GGUF version {} is not supported (2 and 3 are)", name_,
                  version);
    }
    const auto tensors = cursor_.number<uint64_t>();
    const auto keys = cursor_.number<uint64_t>();
    if (exhausted()) return truncated("the header");
    // An entry of either table takes at least 13 bytes of the file.
    MILLRACE_TRY(check_count(tensors, 24, "tensors"));
    MILLRACE_TRY(check_count(keys, 13, "metadata keys"));
    GgufHeader header;
    for (uint64_t i = 0; i < keys; ++i) MILLRACE_TRY(read_key(header));
    MILLRACE_ASSIGN(const uint64_t alignment, read_alignment(header.metadata));
    for (uint64_t i = 0; i < tensors; ++i) MILLRACE_TRY(read_tensor(header, i));
    header.data_begin = round_up(cursor_.at(), alignment);
    if (header.data_begin > file_size_ && !header.tensors.empty()) {
      return fail(Code::kInvalid, "{}: file ends before the tensor data", name_);
    }
    for (SourceTensor& tensor : header.tensors) {
      if (tensor.offset % alignment != 0) {
        return fail(Code::kInvalid, "{}: tensor '{}' at offset {} is not aligned to {}", name_,
                    tensor.name, tensor.offset, alignment);
      }
      if (tensor.offset > file_size_) {
        return fail(Code::kInvalid, "{}: tensor '{}' at offset {} reaches past the end of the file",
                    name_, tensor.name, tensor.offset);
      }
      tensor.offset += header.data_begin;
    }
    MILLRACE_TRY(
        check_placement(name_, header.tensors, header.data_begin, file_size_, alignment, false));
    return header;
  }

 private:
  tl::unexpected<Error> truncated(std::string_view what) {
    return fail(Code::kInvalid, "{}: file ends inside {}", name_, what);
  }

  // Refuses counts that the rest of the file cannot hold, before anything is allocated for them.
  Status check_count(uint64_t count, uint64_t least_bytes, std::string_view what) {
    if (count > kMaxCount ||
        count > (file_size_ - std::min(file_size_, cursor_.at())) / least_bytes) {
      return fail(Code::kInvalid, "{}: {} {} cannot be in a file of {} bytes", name_, count, what,
                  file_size_);
    }
    return {};
  }

  Status read_key(GgufHeader& header) {
    const std::string key(cursor_.string());
    const auto type = cursor_.number<uint32_t>();
    if (exhausted()) return truncated("the metadata");
    MILLRACE_ASSIGN(GgufValue value, read_value(key, type));
    if (exhausted()) return truncated(fmt::format("metadata key '{}'", key));
    if (!header.metadata.emplace(key, std::move(value)).second) {
      return fail(Code::kInvalid, "{}: metadata key '{}' occurs twice", name_, key);
    }
    return {};
  }

  Expected<GgufValue> read_value(const std::string& key, uint32_t type) {
    GgufValue out;
    switch (static_cast<ValueType>(type)) {
      case ValueType::kU8:
        out.value = uint64_t{cursor_.number<uint8_t>()};
        break;
      case ValueType::kU16:
        out.value = uint64_t{cursor_.number<uint16_t>()};
        break;
      case ValueType::kU32:
        out.value = uint64_t{cursor_.number<uint32_t>()};
        break;
      case ValueType::kU64:
        out.value = cursor_.number<uint64_t>();
        break;
      case ValueType::kI8:
        out.value = int64_t{cursor_.number<int8_t>()};
        break;
      case ValueType::kI16:
        out.value = int64_t{cursor_.number<int16_t>()};
        break;
      case ValueType::kI32:
        out.value = int64_t{cursor_.number<int32_t>()};
        break;
      case ValueType::kI64:
        out.value = cursor_.number<int64_t>();
        break;
      case ValueType::kF32:
        out.value = double{cursor_.number<float>()};
        break;
      case ValueType::kF64:
        out.value = cursor_.number<double>();
        break;
      case ValueType::kBool:
        out.value = cursor_.number<uint8_t>() != 0;
        break;
      case ValueType::kString:
        out.value = std::string(cursor_.string());
        break;
      case ValueType::kArray:
        return read_array(key);
      default:
        return fail(Code::kInvalid, "{}: metadata key '{}' has unknown type {}", name_, key, type);
    }
    return out;
  }

  Expected<GgufValue> read_array(const std::string& key) {
    const auto type = cursor_.number<uint32_t>();
    const auto count = cursor_.number<uint64_t>();
    GgufValue out;
    if (exhausted()) return out;
    switch (static_cast<ValueType>(type)) {
      case ValueType::kU8:
        return numbers<uint8_t, uint64_t>(key, count);
      case ValueType::kU16:
        return numbers<uint16_t, uint64_t>(key, count);
      case ValueType::kU32:
        return numbers<uint32_t, uint64_t>(key, count);
      case ValueType::kU64:
        return numbers<uint64_t, uint64_t>(key, count);
      case ValueType::kI8:
        return numbers<int8_t, int64_t>(key, count);
      case ValueType::kI16:
        return numbers<int16_t, int64_t>(key, count);
      case ValueType::kI32:
        return numbers<int32_t, int64_t>(key, count);
      case ValueType::kI64:
        return numbers<int64_t, int64_t>(key, count);
      case ValueType::kF32:
        return numbers<float, double>(key, count);
      case ValueType::kF64:
        return numbers<double, double>(key, count);
      case ValueType::kBool:
        return numbers<uint8_t, bool>(key, count);
      case ValueType::kString:
        break;
      case ValueType::kArray:
        return fail(Code::kUnsupported, "{}: metadata key '{}' is an array of arrays", name_, key);
      default:
        return fail(Code::kInvalid, "{}: metadata key '{}' is an array of unknown type {}", name_,
                    key, type);
    }
    MILLRACE_TRY(check_array(key, count, sizeof(uint64_t)));
    std::vector<std::string> strings;
    // The header may not be read whole yet: hold no more than it can fill.
    strings.reserve(std::min(count, cursor_.left() / sizeof(uint64_t)));
    for (uint64_t i = 0; i < count && !exhausted(); ++i) strings.emplace_back(cursor_.string());
    out.value = std::move(strings);
    return out;
  }

  Status check_array(const std::string& key, uint64_t count, uint64_t item_bytes) {
    if (count <= kMaxArray && count <= (file_size_ - cursor_.at()) / item_bytes) return {};
    return fail(Code::kInvalid,
                "{}: metadata key '{}': an array of {} cannot be in a file of {} bytes", name_, key,
                count, file_size_);
  }

  template <class Stored, class Held>
  Expected<GgufValue> numbers(const std::string& key, uint64_t count) {
    MILLRACE_TRY(check_array(key, count, sizeof(Stored)));
    GgufValue out;
    if (count > cursor_.left() / sizeof(Stored)) {
      cursor_.give_up();
      return out;
    }
    std::vector<Held> held;
    held.reserve(count);
    for (uint64_t i = 0; i < count; ++i)
      held.push_back(static_cast<Held>(cursor_.number<Stored>()));
    out.value = std::move(held);
    return out;
  }

  Expected<uint64_t> read_alignment(const GgufMetadata& metadata) {
    const auto found = metadata.find("general.alignment");
    if (found == metadata.end()) return kDefaultAlignment;
    const auto* value = std::get_if<uint64_t>(&found->second.value);
    if (value == nullptr || *value == 0 || *value > kMaxAlignment || !std::has_single_bit(*value)) {
      return fail(Code::kInvalid, "{}: general.alignment is not a power of two", name_);
    }
    return *value;
  }

  Status read_tensor(GgufHeader& header, uint64_t number) {
    SourceTensor tensor;
    tensor.name = cursor_.string();
    const auto axes = cursor_.number<uint32_t>();
    if (exhausted()) return truncated(fmt::format("entry {} of the tensor table", number));
    if (axes > kMaxAxes) {
      return fail(Code::kInvalid, "{}: tensor '{}' has {} axes", name_, tensor.name, axes);
    }
    tensor.shape.resize(axes);
    for (uint32_t i = 0; i < axes; ++i) tensor.shape[axes - 1 - i] = cursor_.number<uint64_t>();
    const auto id = cursor_.number<uint32_t>();
    tensor.offset = cursor_.number<uint64_t>();
    if (exhausted()) return truncated(fmt::format("the table entry of tensor '{}'", tensor.name));
    const TypeEntry* entry = nullptr;
    for (const TypeEntry& known : kTypes) {
      if (known.id == id) entry = &known;
    }
    if (entry == nullptr) {
      return fail(Code::kInvalid, "{}: tensor '{}' has unknown type {}", name_, tensor.name, id);
    }
    if (!entry->type) {
      return fail(Code::kUnsupported, "{}: tensor '{}' has type {}, which is not supported", name_,
                  tensor.name, entry->name);
    }
    tensor.type = *entry->type;
    auto bytes = tensor_bytes(tensor.type, tensor.shape);
    if (!bytes) {
      return with_context(fmt::format("{}: tensor '{}'", name_, tensor.name),
                          std::move(bytes.error()));
    }
    tensor.bytes = *bytes;
    if (!names_.insert(tensor.name).second) {
      return fail(Code::kInvalid, "{}: tensor '{}' occurs twice", name_, tensor.name);
    }
    header.tensors.push_back(std::move(tensor));
    return {};
  }

  std::string_view name_;
  Cursor cursor_;
  uint64_t file_size_;
  std::unordered_set<std::string> names_;
};

}  // namespace

Expected<GgufHeader> parse_gguf_head(std::string_view name, std::string_view head,
                                     uint64_t file_size, bool& short_head) {
  HeaderParser parser(name, head.substr(0, file_size), file_size);
  auto header = parser.parse();
  short_head = !header && parser.exhausted();
  return header;
}

Expected<GgufHeader> parse_gguf_header(std::string_view name, std::string_view head,
                                       uint64_t file_size) {
  bool short_head = false;
  return parse_gguf_head(name, head, file_size, short_head);
}

}  // namespace millrace::format
