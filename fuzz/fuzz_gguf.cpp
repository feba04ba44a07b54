// GGUF headers: any bytes, as a whole file and as the head of a much larger one.
#include "check_source.h"
#include "format/source_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const std::string_view head(reinterpret_cast<const char*>(data), size);
  for (const uint64_t file_size : {uint64_t{size}, uint64_t{1} << 40}) {
    bool short_head = false;
    auto header = format::parse_gguf_head("f", head, file_size, short_head);
    if (header) {
      fuzz::require(!short_head);
      fuzz::check_tensors(std::move(header->tensors), header->data_begin, file_size);
    } else {
      fuzz::require(header.error().message.starts_with("f: "));
    }
  }
  return 0;
}
