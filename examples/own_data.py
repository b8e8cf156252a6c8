"""Train a segmentation model on a folder of your own frames and masks, and use it.

    python examples/own_data.py /data/hospital-a --class 40=shaft --class 200=wrist --video surgery.mp4

The folder has frames and masks in any layout that `surgfl site init` recognises, such as <video>/frames/000.png and
<video>/masks/000.png. Each --class names one value of the masks; the name `ignore` excludes pixels from training.
"""

import argparse

import surgfl


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a segmentation model on your own frames.")
    parser.add_argument("folder")
    parser.add_argument("--class", dest="classes", action="append", default=[], metavar="VALUE=NAME")
    parser.add_argument("--video", help="video or folder of frames to segment with the trained model")
    parser.add_argument("--steps", type=int, help="training steps; default: five minutes of training")
    parser.add_argument("--out", default="own-model")
    args = parser.parse_args()
    ids = dict(pair.split("=", 1) for pair in args.classes)

    site = surgfl.site(args.folder, ids=ids)  # writes <folder>/site.yaml, which describes the data
    print("classes:", ", ".join(site.classes))
    outcome = surgfl.train(site, args.out, steps=args.steps)
    print("Dice before and after training:", outcome.before["dice"]["mean"], outcome.after["dice"]["mean"])

    if args.video:
        for prediction in surgfl.load(outcome.model).segment_video(args.video):
            print(f"{prediction.name}: {(prediction.mask > 0).mean():.1%} of the pixels show an instrument")


if __name__ == "__main__":
    main()
