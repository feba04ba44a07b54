#include "tests/pack/pack_test_util.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace millrace::format {
namespace {

template <class T>
std::string le(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string random_bytes(uint64_t bytes, std::mt19937& random) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

struct NewTensor {
  std::string name;
  SourceType type;
  std::vector<uint64_t> shape;
  uint64_t bytes() const {
    uint64_t elements = 1;
    for (const uint64_t axis : shape) elements *= axis;
    return elements / info(type).block_elements * info(type).block_bytes;
  }
};

std::string dtype(SourceType type) {
  switch (type) {
    case SourceType::kBF16:
      return "BF16";
    case SourceType::kF32:
      return "F32";
    case SourceType::kF16:
      return "F16";
    case SourceType::kU32:
      return "U32";
    default:
      return "U8";
  }
}

void write_safetensors(const std::string& path, const std::vector<NewTensor>& tensors,
                       uint32_t seed) {
  std::mt19937 random(seed);
  nlohmann::json header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t at = 0;
  for (const NewTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", dtype(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize(round_up(text.size(), 8), ' ');
  write_all(path, le<uint64_t>(text.size()) + text + random_bytes(at, random));
}

std::string gguf_string(const std::string& text) { return le<uint64_t>(text.size()) + text; }

uint32_t ggml_type(SourceType type) {
  static const std::map<SourceType, uint32_t> kTypes = {
      {SourceType::kF32, 0},   {SourceType::kF16, 1},     {SourceType::kBF16, 30},
      {SourceType::kQ4_0, 2},  {SourceType::kQ4_1, 3},    {SourceType::kQ5_0, 6},
      {SourceType::kQ5_1, 7},  {SourceType::kQ8_0, 8},    {SourceType::kQ2_K, 10},
      {SourceType::kQ3_K, 11}, {SourceType::kQ4_K, 12},   {SourceType::kQ5_K, 13},
      {SourceType::kQ6_K, 14}, {SourceType::kIQ4_NL, 20}, {SourceType::kIQ4_XS, 23},
      {SourceType::kMXFP4, 39}};
  return kTypes.at(type);
}

void write_gguf(const std::string& path, const std::vector<NewTensor>& tensors, uint32_t seed) {
  std::mt19937 random(seed);
  std::string head = "GGUF" + le<uint32_t>(3) + le<uint64_t>(tensors.size()) + le<uint64_t>(1) +
                     gguf_string("general.architecture") + le<uint32_t>(8) +
                     gguf_string("qwen3moe");
  uint64_t at = 0;
  for (const NewTensor& tensor : tensors) {
    head += gguf_string(tensor.name) + le<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
    for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis) {
      head += le<uint64_t>(*axis);
    }
    head += le<uint32_t>(ggml_type(tensor.type)) + le<uint64_t>(at);
    at = round_up(at + tensor.bytes(), 32);
  }
  // Padding that is not zero has to come back, too.
  while (head.size() % 32 != 0) head += 'p';
  write_all(path, head + random_bytes(at, random));
}

void open_into(Sample& sample, const std::string& path, const std::string& folder) {
  auto source = open_source(path);
  ASSERT_TRUE(source) << source.error().message;
  sample.source = std::move(*source);
  sample.folder = folder;
  for (const SourceFile& file : sample.source.files) sample.files.push_back(file.name);
}

constexpr uint32_t kRoleCount = static_cast<uint32_t>(Role::kSharedRouter) + 1;
Role role_at(size_t i) { return static_cast<Role>(i % kRoleCount); }

}  // namespace

PackJob Sample::job(const std::string& out) const {
  PackJob pack;
  pack.source = &source;
  pack.table = &table;
  pack.architecture = "test";
  pack.out = out;
  return pack;
}

void TableMaker::piece(const std::string& name, PieceKind kind, int32_t layer, int32_t expert) {
  done();
  Piece piece;
  piece.name = name;
  piece.kind = kind;
  piece.layer = layer;
  piece.expert = expert;
  sample_.table.pieces.push_back(piece);
}

void TableMaker::place(Role role, const WeightView& view) {
  Piece& piece = sample_.table.pieces.back();
  PieceTensor tensor;
  tensor.role = role;
  tensor.view = view;
  tensor.bytes = view_bytes(view);
  tensor.offset = round_up(piece.bytes, 64);
  piece.bytes = tensor.offset + tensor.bytes;
  piece.tensors.push_back(tensor);
}

void TableMaker::add(Role role, const std::string& tensor, uint64_t index,
                     const std::function<void(WeightView&)>& change) {
  WeightView view;
  view.weight = sample_.source.by_name.at(tensor);
  auto layout = layout_of(sample_.source, view.weight, kNoTensor, kNoTensor, {});
  ASSERT_TRUE(layout) << layout.error().message;
  view.layout = *layout;
  view.index = index;
  if (change) change(view);
  place(role, view);
}

void TableMaker::add_vector(Role role, const std::string& tensor, uint64_t index, uint32_t begin,
                            uint32_t step) {
  WeightView view;
  view.weight = sample_.source.by_name.at(tensor);
  const SourceTensor& from = sample_.source.tensors[view.weight];
  view.vector = true;
  view.layout.format = from.type == SourceType::kF32    ? WeightFormat::kF32
                       : from.type == SourceType::kBF16 ? WeightFormat::kBF16
                                                        : WeightFormat::kF16;
  view.layout.rows = 1;
  view.layout.cols = static_cast<uint32_t>(from.shape.back() / step);
  view.index = index;
  view.row_begin = begin;
  view.row_step = step;
  place(role, view);
}

void TableMaker::add_quantized(Role role, const std::string& module, uint64_t index,
                               const QuantParams& quant) {
  WeightView view;
  view.weight = sample_.source.by_name.at(module + ".weight");
  view.scales = sample_.source.by_name.at(module + ".scales");
  view.biases = sample_.source.by_name.at(module + ".biases");
  auto layout = layout_of(sample_.source, view.weight, view.scales, view.biases, quant);
  ASSERT_TRUE(layout) << layout.error().message;
  view.layout = *layout;
  view.index = index;
  place(role, view);
}

void TableMaker::done() {
  if (sample_.table.pieces.empty()) return;
  Piece& piece = sample_.table.pieces.back();
  piece.bytes = round_up(std::max<uint64_t>(piece.bytes, 1), kPackAlign);
}

Sample make_gguf(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const SourceType formats[] = {
      SourceType::kF32,  SourceType::kF16,    SourceType::kBF16,   SourceType::kQ4_0,
      SourceType::kQ4_1, SourceType::kQ5_0,   SourceType::kQ5_1,   SourceType::kQ8_0,
      SourceType::kQ2_K, SourceType::kQ3_K,   SourceType::kQ4_K,   SourceType::kQ5_K,
      SourceType::kQ6_K, SourceType::kIQ4_NL, SourceType::kIQ4_XS, SourceType::kMXFP4};
  std::vector<NewTensor> tensors;
  tensors.push_back({"token_embd.weight", SourceType::kQ8_0, {500, 256}});
  tensors.push_back({"odd_norm", SourceType::kF32, {37}});  // leaves padding behind it
  for (const SourceType type : formats) {
    tensors.push_back({fmt::format("w.{}", info(type).name), type, {61, 512}});
  }
  for (const char* part : {"gate", "up", "down"}) {
    tensors.push_back({fmt::format("exps.{}", part), SourceType::kQ4_0, {8, 128, 256}});
  }
  tensors.push_back({"used_in_part", SourceType::kQ8_0, {64, 64}});
  tensors.push_back({"not_used", SourceType::kF16, {33, 7}});
  write_gguf(folder + "/model.gguf", tensors, 1);
  write_all(folder + "/expected.json", "{\"made\": \"by hand\"}");
  write_all(folder + "/tokenizer.json", "of another model");

  Sample sample;
  open_into(sample, folder + "/model.gguf", folder);
  sample.files.push_back("expected.json");
  TableMaker maker(sample);
  for (uint32_t begin = 0; begin < 500; begin += 200) {
    maker.piece(fmt::format("embedding.{}", begin), PieceKind::kEmbedding);
    maker.add(Role::kEmbedding, "token_embd.weight", 0, [&](WeightView& view) {
      view.row_begin = begin;
      view.layout.rows = std::min(200u, 500 - begin);
    });
    sample.table.pieces.back().row_begin = begin;
  }
  maker.piece("layers.0.mixer", PieceKind::kMixer, 0);
  maker.add_vector(Role::kMixerInNorm, "odd_norm");
  for (size_t i = 0; i < std::size(formats); ++i) {
    maker.add(role_at(i + 8), fmt::format("w.{}", info(formats[i]).name));
  }
  for (int32_t expert = 0; expert < 8; ++expert) {
    maker.piece(fmt::format("layers.0.experts.{}", expert), PieceKind::kExpert, 0, expert);
    maker.add(Role::kGate, "exps.gate", static_cast<uint64_t>(expert));
    maker.add(Role::kUp, "exps.up", static_cast<uint64_t>(expert));
    maker.add(Role::kDown, "exps.down", static_cast<uint64_t>(expert));
  }
  maker.piece("layers.1.ffn", PieceKind::kFfn, 1);
  maker.add(Role::kGate, "used_in_part", 0, [](WeightView& view) { view.layout.rows = 40; });
  maker.piece("head", PieceKind::kHead);  // tied
  maker.add(Role::kHead, "token_embd.weight");
  maker.done();
  return sample;
}

Sample make_sharded(const std::string& folder) {
  std::filesystem::create_directories(folder);
  nlohmann::json map;
  const auto shard = [&](int number, const std::vector<NewTensor>& tensors) {
    const std::string name = fmt::format("model-{:05}-of-00003.safetensors", number);
    write_safetensors(folder + "/" + name, tensors, static_cast<uint32_t>(number));
    for (const NewTensor& tensor : tensors) map[tensor.name] = name;
  };
  shard(1, {{"embed", SourceType::kBF16, {300, 96}}, {"l0.norm", SourceType::kBF16, {96}}});
  shard(2, {{"l0.q", SourceType::kBF16, {100, 96}}, {"l0.k", SourceType::kBF16, {7, 96}}});
  shard(3, {{"l1.down", SourceType::kBF16, {96, 130}},
            {"norm", SourceType::kF32, {96}},
            {"vision.patch", SourceType::kBF16, {5, 3, 2}}});
  write_all(folder + "/model.safetensors.index.json",
            nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump(2));
  write_all(folder + "/config.json", "{\n  \"model_type\": \"llama\",  \"inf\": Infinity\n}\n");
  write_all(folder + "/tokenizer.json", "{\"a\": \"\\u00e9\"}");
  write_all(folder + "/chat_template.jinja", "{{ messages }}");
  write_all(folder + "/LICENSE", "free");
  write_all(folder + "/pytorch_model.bin", "not carried");
  write_safetensors(folder + "/expected.safetensors", {{"logits", SourceType::kF32, {3, 4}}}, 9);

  Sample sample;
  open_into(sample, folder, folder);
  for (const char* name : {"model.safetensors.index.json", "config.json", "tokenizer.json",
                           "chat_template.jinja", "LICENSE", "expected.safetensors"}) {
    sample.files.push_back(name);
  }
  TableMaker maker(sample);
  maker.piece("embedding", PieceKind::kEmbedding);
  maker.add(Role::kEmbedding, "embed");
  maker.piece("layers.0.mixer", PieceKind::kMixer, 0);
  maker.add_vector(Role::kMixerInNorm, "l0.norm");
  maker.add(Role::kQ, "l0.q");
  maker.add(Role::kK, "l0.k");
  maker.piece("layers.1.ffn", PieceKind::kFfn, 1);
  maker.add(Role::kDown, "l1.down", 0, [](WeightView& view) {
    view.transposed = true;
    view.layout.rows = 130;
    view.layout.cols = 96;
  });
  maker.piece("final", PieceKind::kFinal);
  maker.add_vector(Role::kFinalNorm, "norm");
  maker.done();
  return sample;
}

Sample make_affine(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<NewTensor> tensors;
  const uint8_t widths[] = {2, 3, 4, 5, 6, 8};
  const auto module = [&](const std::string& name, std::vector<uint64_t> lead, uint64_t cols,
                          uint32_t bits, uint32_t group) {
    auto codes = lead, sides = lead;
    codes.push_back(cols * bits / 32);
    sides.push_back(cols / group);
    tensors.push_back({name + ".weight", SourceType::kU32, codes});
    tensors.push_back({name + ".scales", SourceType::kBF16, sides});
    tensors.push_back({name + ".biases", SourceType::kBF16, sides});
  };
  for (const uint8_t bits : widths) module(fmt::format("m{}", bits), {40}, 256, bits, 64);
  module("experts", {6, 32}, 256, 4, 32);
  write_safetensors(folder + "/model.safetensors", tensors, 5);
  write_all(folder + "/config.json",
            R"({"model_type":"qwen3_moe","quantization":{"bits":4,"group_size":64}})");

  Sample sample;
  open_into(sample, folder, folder);
  sample.files.push_back("config.json");
  TableMaker maker(sample);
  maker.piece("layers.0.mixer", PieceKind::kMixer, 0);
  for (size_t i = 0; i < std::size(widths); ++i) {
    maker.add_quantized(role_at(i + 8), fmt::format("m{}", widths[i]), 0,
                        {.bits = widths[i], .group = 64, .mxfp4 = false});
  }
  for (int32_t expert = 0; expert < 6; ++expert) {
    maker.piece(fmt::format("layers.0.experts.{}", expert), PieceKind::kExpert, 0, expert);
    maker.add_quantized(Role::kGate, "experts", static_cast<uint64_t>(expert),
                        {.bits = 4, .group = 32, .mxfp4 = false});
  }
  maker.done();
  return sample;
}

Sample make_interleaved(const std::string& folder) {
  std::filesystem::create_directories(folder);
  constexpr uint64_t kExperts = 4, kHidden = 48, kInner = 40;
  write_safetensors(folder + "/model.safetensors",
                    {{"gate_up", SourceType::kBF16, {kExperts, kHidden, 2 * kInner}},
                     {"gate_up_bias", SourceType::kBF16, {kExperts, 2 * kInner}},
                     {"down", SourceType::kBF16, {kExperts, kInner, kHidden}},
                     {"rows", SourceType::kBF16, {2 * kInner, kHidden}}},
                    6);
  write_all(folder + "/config.json", R"({"model_type":"gpt_oss"})");
  Sample sample;
  open_into(sample, folder, folder);
  sample.files.push_back("config.json");
  TableMaker maker(sample);
  maker.piece("layers.0.router", PieceKind::kRouter, 0);
  for (const uint32_t half : {0u, 1u}) {
    maker.add(half == 0 ? Role::kSharedGate : Role::kSharedUp, "rows", 0, [&](WeightView& view) {
      view.row_begin = half;
      view.row_step = 2;
      view.layout.rows = kInner;
    });
  }
  for (uint64_t expert = 0; expert < kExperts; ++expert) {
    maker.piece(fmt::format("layers.0.experts.{}", expert), PieceKind::kExpert, 0,
                static_cast<int32_t>(expert));
    for (const uint32_t half : {0u, 1u}) {
      maker.add(half == 0 ? Role::kGate : Role::kUp, "gate_up", expert, [&](WeightView& view) {
        view.transposed = true;
        view.row_begin = half;
        view.row_step = 2;
        view.layout.rows = kInner;
        view.layout.cols = kHidden;
      });
      maker.add_vector(half == 0 ? Role::kGateBias : Role::kUpBias, "gate_up_bias", expert, half,
                       2);
    }
    maker.add(Role::kDown, "down", expert, [&](WeightView& view) {
      view.transposed = true;
      view.layout.rows = kHidden;
      view.layout.cols = kInner;
    });
  }
  maker.done();
  return sample;
}

void expect_unpacks(const Sample& sample, const std::string& packed_path, const std::string& out) {
  auto packed = open_packed(packed_path);
  ASSERT_TRUE(packed) << packed.error().message;
  PieceTable table = sample.table;
  ASSERT_OK(bind_packed(*packed, &table));
  PackJob job;
  job.out = out;
  ASSERT_OK(unpack_model(*packed, table, job));
  for (const std::string& name : sample.files) {
    EXPECT_TRUE(read_all(out + "/" + name) == read_all(sample.folder + "/" + name)) << name;
  }
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    (void)entry;
    ++count;
  }
  EXPECT_EQ(count, sample.files.size());
}

}  // namespace millrace::format
