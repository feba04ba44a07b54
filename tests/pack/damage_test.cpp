// One wrong bit anywhere, a file cut short or missing: verify says which file, piece and offset.
#include <nlohmann/json.hpp>

#include "format/pack_folder.h"
#include "tests/pack/pack_test_util.h"

namespace millrace::format {
namespace {

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    sample_ = make_sharded(temp_ / "source");
    PackTuning tuning;
    tuning.file_bytes = 70000;
    ASSERT_OK(pack_model(sample_.job(temp_ / "packed"), tuning));
    ASSERT_OK(verify_packed(temp_ / "packed", {}));
  }

  void flip(const std::string& name, uint64_t at, int bit) {
    std::string bytes = read_all(file(name));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    write_all(file(name), bytes);
  }
  std::string file(const std::string& name) const { return temp_ / ("packed/" + name); }
  std::string verify() const { return message_of(verify_packed(temp_ / "packed", {})); }

  TempFolder temp_;
  Sample sample_;
};

TEST_F(Damage, OneBitOfAnyFile) {
  std::mt19937 random(3);
  for (const auto& entry : std::filesystem::directory_iterator(temp_ / "packed")) {
    const std::string name = entry.path().filename().string();
    const uint64_t bytes = std::filesystem::file_size(entry.path());
    for (int round = 0; round < 12; ++round) {
      const uint64_t at = round == 0 ? 0 : round == 1 ? bytes - 1 : random() % bytes;
      const int bit = static_cast<int>(random() % 8);
      flip(name, at, bit);
      EXPECT_NE(verify().find(name), std::string::npos) << name << " at " << at << ": " << verify();
      flip(name, at, bit);
    }
  }
  EXPECT_EQ(verify(), "(no error)");
}

// A model over several disks: its weights files are moved and linked to.
TEST_F(Damage, WeightsMayBeLinks) {
  std::filesystem::create_directories(temp_ / "other");
  const auto packed = open_packed(temp_ / "packed");
  ASSERT_TRUE(packed);
  ASSERT_GT(packed->files.size(), 1u);
  for (size_t i = 0; i < packed->files.size(); i += 2) {
    const std::string there = temp_ / ("other/" + weights_name(static_cast<uint32_t>(i)));
    std::filesystem::rename(packed->files[i], there);
    std::filesystem::create_symlink(there, packed->files[i]);
  }
  EXPECT_EQ(verify(), "(no error)");
  expect_unpacks(sample_, temp_ / "packed", temp_ / "back");
}

TEST_F(Damage, NamesThePieceAndTheFirstOne) {
  auto packed = open_packed(temp_ / "packed");
  ASSERT_TRUE(packed);
  const Piece& piece = packed->manifest.pieces[1];
  const std::string name = weights_name(piece.file);
  flip(name, piece.offset + piece.bytes - 1, 3);  // padding counts
  flip(weights_name(packed->manifest.pieces[3].file), packed->manifest.pieces[3].offset, 0);
  EXPECT_NE(
      verify().find(fmt::format("{}: piece 'layers.0.mixer' at offset {} ({} bytes): hash mismatch",
                                name, piece.offset, piece.bytes)),
      std::string::npos)
      << verify();
  // Unpacking finds it, too, and leaves nothing behind under the name.
  PieceTable table = sample_.table;
  ASSERT_OK(bind_packed(*packed, &table));
  PackJob job;
  job.out = temp_ / "back";
  EXPECT_NE(message_of(unpack_model(*packed, table, job)).find("piece 'layers.0.mixer' at offset"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(temp_ / "back"));
}

TEST_F(Damage, CutShortOrMissing) {
  for (const auto& entry : std::filesystem::directory_iterator(temp_ / "packed")) {
    const std::string name = entry.path().filename().string(), whole = read_all(file(name));
    write_all(file(name), std::string_view(whole).substr(0, whole.size() - 1));
    EXPECT_NE(verify().find(name), std::string::npos) << verify();
    write_all(file(name), whole + "x");
    EXPECT_NE(verify().find(name), std::string::npos) << verify();
    std::filesystem::remove(file(name));
    EXPECT_NE(verify().find(name), std::string::npos) << verify();
    std::filesystem::create_symlink("/etc/hostname", file(name));
    // Weights may be links to another disk, but not to another file.
    const bool weights = name.starts_with("weights-");
    EXPECT_NE(verify().find(weights ? "cut short" : "symbolic link"), std::string::npos)
        << verify();
    std::filesystem::remove(file(name));
    write_all(file(name), whole);
  }
  EXPECT_EQ(verify(), "(no error)");
}

TEST_F(Damage, UnpackProvesTheWholeFile) {
  // A pack whose every hash is right, but whose pieces hold other weights.
  const std::string path = file("manifest.json");
  std::string text = read_all(path);
  auto manifest = read_manifest(path, text);
  ASSERT_TRUE(manifest) << manifest.error().message;
  manifest->files[0].hash.low ^= 1;
  auto config = nlohmann::json::object();
  auto changed = write_manifest(*manifest, &config);
  ASSERT_TRUE(changed);
  write_all(path, *changed);
  EXPECT_EQ(verify(), "(no error)");
  auto packed = open_packed(temp_ / "packed");
  ASSERT_TRUE(packed) << packed.error().message;
  PackJob job;
  job.out = temp_ / "back";
  EXPECT_NE(message_of(unpack_model(*packed, packed->manifest, job)).find("does not come back"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(temp_ / "back"));
}

TEST_F(Damage, UnpackRefusesFoldersOfOthers) {
  auto packed = open_packed(temp_ / "packed");
  ASSERT_TRUE(packed);
  std::filesystem::create_directories(temp_ / "back");
  write_all(temp_ / "back/diary.txt", "mine");
  PackJob job;
  job.out = temp_ / "back";
  job.overwrite = true;
  EXPECT_NE(message_of(unpack_model(*packed, packed->manifest, job)).find("diary.txt"),
            std::string::npos);
  std::filesystem::remove(temp_ / "back/diary.txt");
  ASSERT_OK(unpack_model(*packed, packed->manifest, job));
  job.overwrite = false;
  EXPECT_FALSE(unpack_model(*packed, packed->manifest, job));
  job.overwrite = true;
  ASSERT_OK(unpack_model(*packed, packed->manifest, job));
}

}  // namespace
}  // namespace millrace::format
