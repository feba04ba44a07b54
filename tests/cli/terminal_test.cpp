// What a person sees on a terminal: a conversation, progress that redraws, Ctrl-C.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "process.h"

namespace millrace::test {
namespace {

const std::string kModel = source_path("models/tiny-moe-4bit");

TEST(Chat, AnswersUntilTheEndOfInput) {
  TerminalSession chat({"run", kModel, "--chat", "-n", "8"});
  ASSERT_TRUE(chat.expect("> ")) << chat.screen();
  chat.type("hello\n");
  ASSERT_TRUE(chat.expect("\n> ")) << chat.screen();
  chat.type("/reset\n");
  ASSERT_TRUE(chat.expect("\n> ")) << chat.screen();
  chat.type("/foo\n");
  ASSERT_TRUE(chat.expect("unknown command /foo; /help lists them")) << chat.screen();
  ASSERT_TRUE(chat.expect("\n> ")) << chat.screen();
  chat.type("/help\n");
  ASSERT_TRUE(chat.expect("/exit")) << chat.screen();
  ASSERT_TRUE(chat.expect("\n> ")) << chat.screen();
  chat.type("\x04");
  EXPECT_EQ(chat.wait(), 0) << chat.screen();
}

TEST(Chat, InterruptStopsTheAnswerThenThePrompt) {
  TerminalSession chat({"run", kModel, "--chat", "-n", "100000", "--ignore-eos"});
  ASSERT_TRUE(chat.expect("> ")) << chat.screen();
  chat.type("hello\n");
  ASSERT_TRUE(chat.expect("hello")) << chat.screen();  // the terminal's own echo
  chat.expect("never printed", 1);                     // let some of the answer come
  chat.type("\x03");
  ASSERT_TRUE(chat.expect("\n> ", 10)) << chat.screen();
  chat.type("\x03");
  EXPECT_EQ(chat.wait(10), 130) << chat.screen();
}

TEST(Terminal, RunWithoutAPromptIsAUsageError) {
  TerminalSession run({"run", kModel});
  EXPECT_TRUE(run.expect("--prompt")) << run.screen();
  EXPECT_EQ(run.wait(), 2);
}

}  // namespace
}  // namespace millrace::test
