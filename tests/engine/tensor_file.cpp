#include "tests/support/tensor_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/numeric.h"
#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

template <class T>
void put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string* out, const std::string& text) {
  put<uint64_t>(out, text.size());
  *out += text;
}

void save(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void put_floats(std::string* out, const std::vector<float>& values) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

}  // namespace

TensorMap read_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t begin = 0;
  auto tensors = format::parse_safetensors_header(path, bytes, bytes.size(), &begin);
  if (!tensors) {
    ADD_FAILURE() << tensors.error().message;
    return {};
  }
  TensorMap map;
  for (const auto& tensor : *tensors) {
    TensorF32 out;
    out.shape = tensor.shape;
    if (tensor.type == format::SourceType::kBF16) {
      std::vector<uint16_t> raw(tensor.bytes / 2);
      std::memcpy(raw.data(), bytes.data() + tensor.offset, tensor.bytes);
      for (const uint16_t v : raw) out.values.push_back(bf16_to_f32(v));
    } else {
      out.values.resize(tensor.bytes / 4);
      std::memcpy(out.values.data(), bytes.data() + tensor.offset, tensor.bytes);
    }
    map[tensor.name] = std::move(out);
  }
  return map;
}

void write_folder(const std::string& folder, const nlohmann::json& config,
                  const TensorMap& tensors) {
  std::filesystem::create_directories(folder);
  save(folder + "/config.json", config.dump());
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t at = data.size();
    put_floats(&data, tensor.values);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, data.size()}}};
  }
  std::string bytes;
  put_text(&bytes, header.dump());
  save(folder + "/model.safetensors", bytes + data);
}

void write_gguf(const std::string& path, const std::string& architecture,
                const std::map<std::string, GgufField>& fields, const TensorMap& tensors) {
  std::string out = "GGUF";
  put<uint32_t>(&out, 3);
  put<uint64_t>(&out, tensors.size());
  put<uint64_t>(&out, fields.size() + 1);
  put_text(&out, "general.architecture");
  put<uint32_t>(&out, 8);
  put_text(&out, architecture);
  for (const auto& [key, field] : fields) {
    put_text(&out, architecture + "." + key);
    if (const auto* number = std::get_if<uint32_t>(&field)) {
      put<uint32_t>(&out, 4), put(&out, *number);
    } else if (const auto* real = std::get_if<float>(&field)) {
      put<uint32_t>(&out, 6), put(&out, *real);
    } else {
      const auto& list = std::get<std::vector<uint32_t>>(field);
      put<uint32_t>(&out, 9), put<uint32_t>(&out, 4), put<uint64_t>(&out, list.size());
      for (const uint32_t v : list) put(&out, v);
    }
  }
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    put_text(&out, name);
    put<uint32_t>(&out, static_cast<uint32_t>(tensor.shape.size()));
    for (auto d = tensor.shape.rbegin(); d != tensor.shape.rend(); ++d) put<uint64_t>(&out, *d);
    put<uint32_t>(&out, 0);  // f32
    put<uint64_t>(&out, offset);
    offset += round_up(tensor.values.size() * sizeof(float), 32);
  }
  out.resize(round_up(out.size(), 32));
  for (const auto& [name, tensor] : tensors) {
    put_floats(&out, tensor.values);
    out.resize(round_up(out.size(), 32));
  }
  save(path, out);
}

}  // namespace millrace::test
