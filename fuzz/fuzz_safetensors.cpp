// safetensors headers: any bytes, as a whole file and as the head of a much larger one.
#include "check_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const std::string_view head(reinterpret_cast<const char*>(data), size);
  for (const uint64_t file_size : {uint64_t{size}, uint64_t{1} << 40}) {
    uint64_t data_begin = 0;
    auto tensors = format::parse_safetensors_header("f", head, file_size, &data_begin);
    if (tensors) {
      fuzz::check_tensors(std::move(*tensors), data_begin, file_size);
    } else {
      fuzz::require(tensors.error().message.starts_with("f: "));
    }
  }
  return 0;
}
