// pack -> verify -> unpack gives the source back, byte for byte, for every kind of source.
#include <nlohmann/json.hpp>

#include "format/pack_coverage.h"
#include "tests/pack/pack_test_util.h"

namespace millrace::format {
namespace {

struct Named {
  const char* name;
  Maker make;
};
class RoundTrip : public ::testing::TestWithParam<Named> {};

TEST_P(RoundTrip, GivesTheSourceBack) {
  TempFolder temp;
  const Sample sample = GetParam().make(temp / "source");
  // Small chunks and files, so that every cut is taken.
  for (const uint64_t chunk : {uint64_t{4} << 20, uint64_t{5000}}) {
    PackTuning tuning;
    tuning.chunk_bytes = chunk;
    tuning.file_bytes = 100000;
    const std::string out = temp / fmt::format("packed-{}", chunk);
    auto packed = pack_model(sample.job(out), tuning);
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_EQ(packed->pieces, sample.table.pieces.size());
    EXPECT_FALSE(packed->resumed);
    EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
    EXPECT_FALSE(std::filesystem::exists(out + "/journal"));
    EXPECT_TRUE(is_packed_folder(out));
    auto verified = verify_packed(out, {});
    ASSERT_TRUE(verified) << verified.error().message;
    EXPECT_EQ(verified->pieces, sample.table.pieces.size());
    expect_unpacks(sample, out, temp / fmt::format("unpacked-{}", chunk));
  }
  // The cut does not show in the result.
  for (const auto& entry : std::filesystem::directory_iterator(temp / "packed-5000")) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(read_all(entry.path().string()) == read_all(temp / ("packed-4194304/" + name)))
        << name;
  }
}

// A piece on the disk is what pack_view makes of the source, at the offsets of the table.
TEST_P(RoundTrip, PiecesHoldTheViews) {
  TempFolder temp;
  const Sample sample = GetParam().make(temp / "source");
  ASSERT_OK(pack_model(sample.job(temp / "packed")));
  auto packed = open_packed(temp / "packed");
  ASSERT_TRUE(packed) << packed.error().message;
  std::vector<std::string> files;
  for (const SourceFile& file : sample.source.files) files.push_back(read_all(file.path));
  for (size_t i = 0; i < sample.table.pieces.size(); ++i) {
    const Piece& piece = packed->manifest.pieces[i];
    const std::string weights = read_all(packed->files[piece.file]);
    std::string wanted(piece.bytes, '\0');
    for (const PieceTensor& tensor : sample.table.pieces[i].tensors) {
      const auto extents = view_extents(sample.source, tensor.view);
      ASSERT_TRUE(extents);
      std::array<std::span<const std::byte>, 3> from;
      for (size_t j = 0; j < 3; ++j) {
        from[j] = std::as_bytes(std::span(files[(*extents)[j].file]))
                      .subspan((*extents)[j].offset, (*extents)[j].bytes);
      }
      pack_view(sample.source, tensor.view, from,
                std::as_writable_bytes(std::span(wanted)).subspan(tensor.offset, tensor.bytes));
    }
    EXPECT_TRUE(weights.substr(piece.offset, piece.bytes) == wanted) << piece.name;
    EXPECT_EQ((Hash128{piece.hash[0], piece.hash[1]}), hash_of(std::string_view(wanted)));
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, RoundTrip,
                         ::testing::Values(Named{"gguf", make_gguf}, Named{"sharded", make_sharded},
                                           Named{"affine", make_affine},
                                           Named{"interleaved", make_interleaved}),
                         [](const ::testing::TestParamInfo<Named>& at) {
                           return std::string(at.param.name);
                         });

TEST(Pack, KeepsWhatNoPieceCarries) {
  TempFolder temp;
  const Sample sample = make_gguf(temp / "source");
  const auto ranges = ranges_beside(sample.source, sample.table);
  ASSERT_TRUE(ranges) << ranges.error().message;
  const auto kept = [&](const std::string& name) {
    const SourceTensor& tensor = sample.source.tensors[sample.source.by_name.at(name)];
    for (const SourceRange& range : *ranges) {
      if (range.offset <= tensor.offset &&
          range.offset + range.bytes >= tensor.offset + tensor.bytes) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(kept("used_in_part"));
  EXPECT_TRUE(kept("not_used"));
  EXPECT_FALSE(kept("token_embd.weight"));
  EXPECT_FALSE(kept("exps.up"));
  EXPECT_EQ((*ranges)[0].offset, 0u);
  EXPECT_EQ((*ranges)[0].bytes, sample.source.files[0].data_begin);
}

TEST(Pack, OpenedSourceIsTheSource) {
  TempFolder temp;
  for (const Maker make : {make_gguf, make_sharded}) {
    const std::string folder = temp / (make == make_gguf ? "a" : "b");
    const Sample sample = make(folder);
    ASSERT_OK(pack_model(sample.job(folder + "-packed")));
    auto packed = open_packed(folder + "-packed");
    ASSERT_TRUE(packed) << packed.error().message;
    const ModelSource& source = packed->source;
    EXPECT_EQ(source.kind, sample.source.kind);
    ASSERT_EQ(source.tensors.size(), sample.source.tensors.size());
    for (size_t i = 0; i < source.tensors.size(); ++i) {
      EXPECT_EQ(source.tensors[i].name, sample.source.tensors[i].name);
      EXPECT_EQ(source.tensors[i].type, sample.source.tensors[i].type);
      EXPECT_EQ(source.tensors[i].shape, sample.source.tensors[i].shape);
      EXPECT_EQ(source.tensors[i].file, sample.source.tensors[i].file);
      EXPECT_EQ(source.tensors[i].offset, sample.source.tensors[i].offset);
    }
    if (sample.source.config) {
      EXPECT_EQ(*source.config, *sample.source.config);
    }
    EXPECT_EQ(source.gguf.size(), sample.source.gguf.size());
  }
}

TEST(Pack, BindNamesWhatDiffers) {
  TempFolder temp;
  const Sample sample = make_interleaved(temp / "source");
  ASSERT_OK(pack_model(sample.job(temp / "packed")));
  auto packed = open_packed(temp / "packed");
  ASSERT_TRUE(packed) << packed.error().message;
  PieceTable table = sample.table;
  ASSERT_OK(bind_packed(*packed, &table));
  EXPECT_EQ(table.pieces[2].offset, packed->manifest.pieces[2].offset);
  // Gate and up exchanged: the same sizes, other weights.
  std::swap(table.pieces[2].tensors[0].view.row_begin, table.pieces[2].tensors[2].view.row_begin);
  EXPECT_NE(message_of(bind_packed(*packed, &table)).find("'layers.0.experts.1': tensor 'gate'"),
            std::string::npos);
  table = sample.table;
  table.pieces.pop_back();
  EXPECT_NE(message_of(bind_packed(*packed, &table)).find("layers.0.experts.3"), std::string::npos);
  table = sample.table;
  table.pieces[0].name = "other";
  EXPECT_FALSE(bind_packed(*packed, &table));
}

TEST(Pack, RefusesAndReplaces) {
  TempFolder temp;
  const Sample sample = make_sharded(temp / "source");
  const Sample other = make_affine(temp / "other");
  ASSERT_OK(pack_model(sample.job(temp / "packed")));
  EXPECT_NE(message_of(pack_model(sample.job(temp / "packed"))).find("exists already"),
            std::string::npos);
  PackJob job = other.job(temp / "packed");
  job.overwrite = true;
  ASSERT_OK(pack_model(job));
  ASSERT_OK(verify_packed(temp / "packed", {}));
  expect_unpacks(other, temp / "packed", temp / "back");
  EXPECT_FALSE(std::filesystem::exists(temp / "packed.partial"));
  // A folder with something else in it is never replaced; nor is the source itself.
  write_all(temp / "packed/notes.txt", "mine");
  EXPECT_NE(message_of(pack_model(job)).find("notes.txt"), std::string::npos);
  job.out = temp / "source";
  EXPECT_FALSE(pack_model(job));
  EXPECT_TRUE(std::filesystem::exists(temp / "source/config.json"));
}

TEST(Pack, SideFilesStayInsideTheModel) {
  TempFolder temp;
  const Sample sample = make_sharded(temp / "source");
  write_all(temp / "secret", "secret");
  std::filesystem::create_symlink(temp / "secret", temp / "source/tokenizer_config.json");
  EXPECT_NE(message_of(pack_model(sample.job(temp / "packed"))).find("leaves the model's folder"),
            std::string::npos);
  // The cache of the hub is a folder of links into its own blobs.
  const std::string snapshot = temp / "hub/snapshots/abc";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(temp / "hub/blobs");
  std::filesystem::remove(temp / "source/tokenizer_config.json");
  for (const std::string& name : sample.files) {
    std::filesystem::copy_file(temp / ("source/" + name), temp / ("hub/blobs/" + name));
    std::filesystem::create_symlink("../../blobs/" + name, snapshot + "/" + name);
  }
  Sample linked = sample;
  auto source = open_source(snapshot);
  ASSERT_TRUE(source) << source.error().message;
  linked.source = *source;
  linked.folder = snapshot;
  ASSERT_OK(pack_model(linked.job(temp / "packed")));
  expect_unpacks(linked, temp / "packed", temp / "back");
}

}  // namespace
}  // namespace millrace::format
