// config.json and the safetensors index: strict JSON with Python's NaN and Infinity.
#include "check_source.h"
#include "format/source_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto json = format::parse_strict_json("f", text);
  if (!json) {
    fuzz::require(json.error().message.starts_with("f: "));
    return 0;
  }
  // What was read can be written and read again.
  const std::string written = json->dump();
  auto again = format::parse_strict_json("f", written);
  fuzz::require(again && *again == *json);
  return 0;
}
