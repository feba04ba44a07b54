// A pack that is killed, cancelled or out of disk leaves nothing that passes for whole, and
// resumes.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "format/pack_journal.h"
#include "tests/pack/pack_test_util.h"

namespace millrace::format {
namespace {

// Small batches, and a wait after each item: so that a kill can come anywhere.
PackTuning slow(int microseconds) {
  PackTuning tuning;
  tuning.batch_bytes = 1;
  tuning.file_bytes = 200000;
  tuning.chunk_bytes = 20000;
  tuning.on_item = [=](std::string_view) -> Status {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    return {};
  };
  return tuning;
}

// Runs in a child that ends with 0 when `work` returned true.
pid_t child(const std::function<bool()>& work) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(work() ? 0 : 1);
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(Kill, AtRandomPointsThenResume) {
  TempFolder temp;
  const Sample sample = make_gguf(temp / "source");
  // How long one takes here, from the folder's creation to the rename.
  const auto start = std::chrono::steady_clock::now();
  wait_for(child([&] { return pack_model(sample.job(temp / "whole"), slow(3000)).has_value(); }));
  const auto life = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  std::mt19937 random(20);
  int killed = 0, resumed = 0, whole = 0;
  for (int round = 0; killed < 20 || round < 20; ++round) {
    ASSERT_LT(round, 200);
    const std::string out = temp / fmt::format("packed-{}", round);
    // Every third pack is killed once more while it resumes.
    for (int attempt = 0; attempt < (round % 3 == 0 ? 2 : 1); ++attempt) {
      const pid_t pid = child([&] { return pack_model(sample.job(out), slow(3000)).has_value(); });
      std::this_thread::sleep_for(life * static_cast<int>(random() % 1000) / 900);
      ::kill(pid, SIGKILL);
      const int status = wait_for(pid);
      if (!WIFSIGNALED(status)) {
        ASSERT_EQ(status, 0);
      }
      killed += WIFSIGNALED(status);
      for (const std::string& folder : {out, out + ".partial"}) {
        auto verified = verify_packed(folder, {});
        if (!verified) continue;
        // Accepted: then it must be whole, and give the source back.
        ++whole;
        TempFolder back;
        expect_unpacks(sample, folder, back / "back");
      }
      if (std::filesystem::exists(out)) break;
    }
    if (std::filesystem::exists(out)) continue;
    auto packed = pack_model(sample.job(out), slow(0));
    ASSERT_TRUE(packed) << packed.error().message;
    resumed += packed->resumed;
    ASSERT_OK(verify_packed(out, {}));
    expect_unpacks(sample, out, out + "-back");
    EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
  }
  EXPECT_GE(resumed, 5);
  std::printf("%d kills, %d resumed, %d folders accepted (all whole)\n", killed, resumed, whole);
}

TEST(Kill, WhileReplacing) {
  TempFolder temp;
  const Sample old_model = make_affine(temp / "old");
  const Sample sample = make_gguf(temp / "source");
  const std::string out = temp / "packed";
  ASSERT_OK(pack_model(old_model.job(out)));
  std::mt19937 random(21);
  for (int round = 0; round < 12; ++round) {
    const pid_t pid = child([&] {
      PackJob job = sample.job(out);
      job.overwrite = true;
      return pack_model(job, slow(1000)).has_value();
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400000));
    ::kill(pid, SIGKILL);
    wait_for(pid);
    // The old one or the new one, never nothing.
    ASSERT_OK(verify_packed(out, {}));
  }
  PackJob job = sample.job(out);
  job.overwrite = true;
  ASSERT_OK(pack_model(job, slow(0)));
  expect_unpacks(sample, out, temp / "back");
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST(Resume, DoesNotWriteFinishedItemsAgain) {
  TempFolder temp;
  const Sample sample = make_gguf(temp / "source");
  PackTuning tuning = slow(0);
  int items = 0;
  tuning.on_item = [&](std::string_view) -> Status {
    if (++items == 7) return fail(Code::kCancelled, "stop");
    return {};
  };
  EXPECT_FALSE(pack_model(sample.job(temp / "packed"), tuning));
  EXPECT_FALSE(verify_packed(temp / "packed.partial", {}));
  const auto state = Journal::load(temp / "packed.partial");
  ASSERT_TRUE(state);
  EXPECT_EQ(state->items.size(), 6u);
  const std::string before = read_all(temp / "packed.partial/journal");
  // A torn last line is cut off.
  write_all(temp / "packed.partial/journal", before + "items 6 0123");
  items = 100;
  auto packed = pack_model(sample.job(temp / "packed"), tuning);
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_TRUE(packed->resumed);
  auto plan = make_pack_plan(sample.job(temp / "packed"), tuning);
  ASSERT_TRUE(plan);
  EXPECT_EQ(static_cast<size_t>(items), 100 + plan->items.size() - 6);
  expect_unpacks(sample, temp / "packed", temp / "back");
}

TEST(Resume, StartsOverForAnotherSourceOrTable) {
  TempFolder temp;
  Sample sample = make_gguf(temp / "source");
  PackTuning tuning = slow(0);
  tuning.on_item = [](std::string_view item) -> Status {
    if (item == "layers.0.experts.2") return fail(Code::kCancelled, "stop");
    return {};
  };
  const auto stop = [&] { EXPECT_FALSE(pack_model(sample.job(temp / "packed"), tuning)); };
  std::string said;
  const auto finish = [&] {
    PackJob job = sample.job(temp / "packed");
    job.overwrite = true;
    job.progress = [&](uint64_t, uint64_t, std::string_view what) {
      if (what.starts_with("starting over")) said = what;
    };
    return pack_model(job, slow(0));
  };
  stop();
  // Touched: the bytes may have changed.
  std::filesystem::last_write_time(
      temp / "source/model.gguf",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  auto packed = finish();
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_FALSE(packed->resumed);
  EXPECT_NE(said.find("another source"), std::string::npos) << said;
  std::filesystem::remove_all(temp / "packed");
  stop();
  sample.table.pieces.back().name = "renamed";
  packed = finish();
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_FALSE(packed->resumed);
  EXPECT_NE(said.find("another piece table"), std::string::npos) << said;
  std::filesystem::remove_all(temp / "packed");
  stop();
  std::string journal = read_all(temp / "packed.partial/journal");
  journal[6] ^= 1;
  write_all(temp / "packed.partial/journal", journal);
  packed = finish();
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_FALSE(packed->resumed);
  EXPECT_NE(said.find("damaged"), std::string::npos) << said;
  expect_unpacks(sample, temp / "packed", temp / "back");
}

TEST(Resume, CancelKeepsWhatIsDone) {
  TempFolder temp;
  const Sample sample = make_gguf(temp / "source");
  PackJob job = sample.job(temp / "packed");
  int calls = 0;
  job.cancelled = [&] { return ++calls > 12; };
  auto packed = pack_model(job, slow(0));
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().code, Code::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(temp / "packed"));
  packed = pack_model(sample.job(temp / "packed"));
  // Another file size is another table: the default tuning starts over. The slow one resumes.
  ASSERT_TRUE(packed) << packed.error().message;
  expect_unpacks(sample, temp / "packed", temp / "back");
}

TEST(Resume, ForeignPartialIsLeftAlone) {
  TempFolder temp;
  const Sample sample = make_affine(temp / "source");
  std::filesystem::create_directories(temp / "packed.partial");
  write_all(temp / "packed.partial/thesis.txt", "mine");
  EXPECT_NE(message_of(pack_model(sample.job(temp / "packed"))).find("thesis.txt"),
            std::string::npos);
  EXPECT_EQ(read_all(temp / "packed.partial/thesis.txt"), "mine");
}

// Unpacking cannot be resumed, so an interrupted one leaves nothing.
TEST(Interrupted, UnpackLeavesNothing) {
  TempFolder temp;
  const Sample sample = make_affine(temp / "source");
  ASSERT_OK(pack_model(sample.job(temp / "packed")));
  const auto opened = open_packed(temp / "packed");
  ASSERT_TRUE(opened);
  PieceTable table = sample.table;
  ASSERT_OK(bind_packed(*opened, &table));
  for (int allowed = 0; allowed < 3; ++allowed) {
    PackJob job = sample.job(temp / "back");
    int calls = 0;
    job.cancelled = [&] { return ++calls > allowed; };
    const auto unpacked = unpack_model(*opened, table, job);
    ASSERT_FALSE(unpacked);
    EXPECT_EQ(unpacked.error().code, Code::kCancelled);
    EXPECT_FALSE(std::filesystem::exists(temp / "back"));
    EXPECT_FALSE(std::filesystem::exists(temp / "back.unpack-partial"));
  }
}

TEST(Lock, TwoPacksIntoOneFolder) {
  TempFolder temp;
  const Sample sample = make_affine(temp / "source");
  std::filesystem::create_directories(temp / "packed.partial");
  const int fd = ::open((temp / "packed.partial").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_NE(message_of(pack_model(sample.job(temp / "packed"))).find("another process"),
            std::string::npos);
  ::close(fd);
  // Many at once: one wins, the others say why not, and the result is whole.
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(
        child([&] { return pack_model(sample.job(temp / "packed"), slow(500)).has_value(); }));
  }
  int won = 0;
  for (const pid_t pid : children) won += wait_for(pid) == 0;
  EXPECT_EQ(won, 1);
  ASSERT_OK(verify_packed(temp / "packed", {}));
}

TEST(Disk, FileLimit) {
  TempFolder temp;
  const Sample sample = make_gguf(temp / "source");
  const pid_t pid = child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{300000, 300000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto packed = pack_model(sample.job(temp / "packed"));
    return !packed && packed.error().code == Code::kIo &&
           packed.error().message.find("weights-00001.bin") != std::string::npos;
  });
  EXPECT_EQ(wait_for(pid), 0);
  EXPECT_FALSE(std::filesystem::exists(temp / "packed"));
  ASSERT_OK(pack_model(sample.job(temp / "packed")));
}

TEST(Disk, FullDisk) {
  TempFolder temp;
  if (::mount("none", temp.path().c_str(), "tmpfs", 0, "size=24m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  TempFolder elsewhere;
  const Sample sample = make_gguf(elsewhere / "source");
  // Less is free than asked for: found before anything is written.
  write_all(temp / "ballast", std::string(6 << 20, 'x'));
  auto packed = pack_model(sample.job(temp / "packed"));
  ASSERT_TRUE(packed) << packed.error().message;
  std::filesystem::remove_all(temp / "packed");
  write_all(temp / "ballast", std::string(20 << 20, 'x'));
  packed = pack_model(sample.job(temp / "packed"));
  ASSERT_FALSE(packed);
  EXPECT_NE(packed.error().message.find("are missing"), std::string::npos)
      << packed.error().message;
  EXPECT_FALSE(std::filesystem::exists(temp / "packed.partial"));
  std::filesystem::remove(temp / "ballast");
  packed = pack_model(sample.job(temp / "packed"));
  ASSERT_TRUE(packed) << packed.error().message;
  expect_unpacks(sample, temp / "packed", temp / "back");
  std::filesystem::remove_all(temp / "back");
  write_all(temp / "ballast", std::string(24 << 20, 'x'));
  const auto whole = open_packed(temp / "packed");
  ASSERT_TRUE(whole);
  EXPECT_NE(message_of(unpack_model(*whole, sample.table, sample.job(temp / "back")))
                .find("bytes of disk"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(temp / "back.unpack-partial"));
  ::umount2(temp.path().c_str(), MNT_DETACH);
}

TEST(Source, ChangedWhilePacking) {
  TempFolder temp;
  const Sample sample = make_gguf(temp / "source");
  PackTuning tuning;
  tuning.on_item = [&](std::string_view item) -> Status {
    if (item != "layers.0.mixer") return {};
    std::filesystem::last_write_time(
        temp / "source/model.gguf",
        std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
    return {};
  };
  EXPECT_NE(message_of(pack_model(sample.job(temp / "packed"), tuning)).find("changed"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(temp / "packed"));
}

}  // namespace
}  // namespace millrace::format
